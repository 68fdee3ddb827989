# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which OCI runtime the engine shall take for a sandbox. Pure."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping

from casulo.model.draft import DOCKER_RUNTIME, nearest
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Isolation, Spec
from casulo.runtimes.docker.engine import About
from casulo.runtimes.docker.settings import DockerSettings
from casulo.runtimes.local import seccomp

_NEWER = (
    "clone3", "close_range", "openat2", "faccessat2", "epoll_pwait2", "fchmodat2", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "process_madvise", "process_mrelease", "futex_waitv",
    "futex_wake", "futex_wait", "futex_requeue", "cachestat", "mseal", "memfd_secret",
    "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "map_shadow_stack",
)  # fmt: skip
"""Calls for which programs look whether they exist, and do without: engines before 23 refuse all that is not
allowed in a way that looks as if these were there but forbidden."""

_SHARING = ("runc", "crun", "io.containerd.runc.v2")


def check_settings(settings: DockerSettings, about: About) -> None:
    """Unsupported when the configuration names a runtime that the engine does not have."""
    for name in (settings.docker_runtime, *settings.selectable_runtimes):
        if name and name not in about.runtimes:
            raise Unsupported(
                f"[docker]: the engine has no runtime {name!r}",
                code=Code.HOST_UNSUPPORTED,
                hint=f"register it in the engine's daemon.json; {nearest(name, about.runtimes)}",
            )


def check_default(settings: DockerSettings, trials: Mapping[str, str]) -> None:
    """Unsupported when the runtime of all sandboxes starts nothing: then there is nothing to serve."""
    if why := trials.get(settings.docker_runtime):
        raise Unsupported(
            f"[docker] docker_runtime: {settings.docker_runtime!r} starts nothing with this engine: {why}",
            code=Code.HOST_UNSUPPORTED,
            hint="try it with `docker run --runtime`, or leave the setting out",
        )


def check(runtime: str, trials: Mapping[str, str]) -> None:
    """Unsupported when a start with this runtime came to nothing as the server began."""
    if why := trials.get(runtime):
        raise Unsupported(
            f"the engine's runtime {runtime!r} starts nothing here: {why}",
            code=Code.ISOLATION_UNAVAILABLE,
            hint="choose another; once it is mended, restart the server",
        )


def runtime_of(spec: Spec, settings: DockerSettings, about: About) -> str:
    """The engine's name for it; empty is the engine's default. A request may only take what is allowed."""
    wanted = spec.extensions.get(DOCKER_RUNTIME)
    if wanted is None:
        usual = settings.docker_runtime
        return about.gvisor if spec.isolation is Isolation.GVISOR and "runsc" not in usual else usual
    if wanted not in settings.selectable_runtimes:
        raise _invalid(
            f"{wanted!r} may not be chosen here",
            nearest(wanted, settings.selectable_runtimes)
            if settings.selectable_runtimes
            else "the server's administrator allows runtimes in [docker] selectable_runtimes",
        )
    if spec.isolation is Isolation.GVISOR and "runsc" not in wanted:
        raise _invalid(f"{wanted!r} is not gVisor, which the isolation asks for")
    return wanted


def shares_kernel(runtime: str, about: About) -> bool:
    """Whether an OCI runtime leaves the container's network to the host's kernel, so that it can be
    connected after its start. Others look for the network once, and then have one of their own."""
    return (runtime or about.default_runtime) in _SHARING


def seccomp_of(runtime: str, about: About) -> str:
    """The profile that the engine shall load, the same as of local sandboxes; empty leaves the engine's own.

    The engine's own lets AF_VSOCK through, which goes past every network namespace and packet filter.
    """
    if not about.seccomp or about.architecture not in ("amd64", "arm64") or not shares_kernel(runtime, about):
        return ""
    profile = seccomp.profile(about.architecture, clone3=False)
    allowed = {name for rule in profile["syscalls"] for name in rule["names"]}
    absent = [name for name in _NEWER if name not in allowed]
    profile["syscalls"].append({"names": absent, "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    return json.dumps(profile)


def _invalid(what: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"extension {DOCKER_RUNTIME}: {what}", code=Code.INVALID_PARAMETER, hint=hint)
