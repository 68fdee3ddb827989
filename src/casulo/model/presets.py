# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Names for what tools commonly need, so that a policy can say `preset:pypi` instead of a list of hosts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from casulo.model.errors import Code, InvalidRequest

PREFIX = "preset:"

PRESETS: Mapping[str, tuple[str, ...]] = {
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "npm": ("registry.npmjs.org", "registry.yarnpkg.com"),
    "debian": ("deb.debian.org", "security.debian.org", "ftp.debian.org"),
    "ubuntu": ("archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"),
    "alpine": ("dl-cdn.alpinelinux.org",),
    "github": (
        "github.com",
        "api.github.com",
        "codeload.github.com",
        "raw.githubusercontent.com",
        "objects.githubusercontent.com",
        "release-assets.githubusercontent.com",
        "github-releases.githubusercontent.com",
    ),
    "gitlab": ("gitlab.com", "registry.gitlab.com"),
    "crates": ("crates.io", "index.crates.io", "static.crates.io"),
    "go": ("proxy.golang.org", "sum.golang.org", "storage.googleapis.com"),
    "maven": ("repo.maven.apache.org", "repo1.maven.org"),
    "rubygems": ("rubygems.org", "index.rubygems.org"),
    "conda": ("conda.anaconda.org", "repo.anaconda.com"),
    "docker": ("registry-1.docker.io", "auth.docker.io", "production.cloudflare.docker.com"),
    "huggingface": ("huggingface.co", "cdn-lfs.huggingface.co", "cdn-lfs.hf.co", "cas-bridge.xethub.hf.co"),
    "anthropic": ("api.anthropic.com",),
    "openai": ("api.openai.com",),
}


def is_preset(target: str) -> bool:
    """Whether a target names a preset, known or not."""
    return target.lower().startswith(PREFIX)


def names_of(target: str) -> tuple[str, ...] | None:
    """The hosts of a preset; None for other targets."""
    return PRESETS[target.lower().removeprefix(PREFIX)] if is_preset(target) else None


def require(target: str, where: str) -> None:
    """Raise when there is no such preset."""
    name = target.lower().removeprefix(PREFIX)
    if name in PRESETS:
        return
    close = difflib.get_close_matches(name, PRESETS, n=1)
    raise InvalidRequest(
        f"{where}: there is no preset {name!r}",
        code=Code.NETWORK_POLICY_INVALID,
        hint=f"did you mean {PREFIX}{close[0]}?" if close else f"known: {', '.join(sorted(PRESETS))}",
    )
