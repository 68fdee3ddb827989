# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the configured Docker Engine can and cannot do for sandboxes, found out by asking it."""

from __future__ import annotations

import asyncio
import platform

from casulo.model.errors import CasuloError
from casulo.runtimes.docker.choice import check_settings
from casulo.runtimes.docker.engine import About, Engine
from casulo.runtimes.docker.settings import DockerSettings
from casulo.runtimes.local.doctor import Check

_REGISTERED = (
    "runtime {} is registered; whether it starts is tried by the server, and told in its capabilities"
)


def report(settings: DockerSettings, required: bool) -> list[Check]:
    """The engine, and what depends on it; `required` where the server is to use it."""
    try:
        about = asyncio.run(_ask(settings))
    except CasuloError as error:
        fix = error.hint or "apt-get install docker.io"
        return [Check("docker engine", False, error.message, fix, required)]
    return [
        Check("docker engine", True, _words(settings, about), required=required),
        _runtimes(settings, about, required),
        _gvisor(about),
    ]


async def _ask(settings: DockerSettings) -> About:
    engine = Engine(settings)
    await engine.open()
    await engine.close()
    return engine.about


def _words(settings: DockerSettings, about: About) -> str:
    here = "on this kernel" if about.kernel == platform.release() else f"on Linux {about.kernel}"
    rights = ", rootless" if about.rootless else ""
    return f"{about.version} at {settings.url}, {here}, {about.architecture}, {about.storage}{rights}"


def _runtimes(settings: DockerSettings, about: About, required: bool) -> Check:
    try:
        check_settings(settings, about)
    except CasuloError as error:
        return Check("docker runtimes", False, error.message, error.hint, required)
    return Check("docker runtimes", True, ", ".join(about.runtimes), required=required)


def _gvisor(about: About) -> Check:
    if about.gvisor:
        return Check("gvisor in docker", True, _REGISTERED.format(about.gvisor), required=False)
    fix = "runsc install, then restart Docker"
    return Check("gvisor in docker", False, "the engine has no runtime runsc", fix, required=False)
