# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What an image says about how it wants to be run, and what a request makes of it. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import Code, InvalidRequest

_BASE_LABEL = "casulo.base"


@dataclass(frozen=True)
class ImageConfig:
    """The `config` member of an image configuration. Lists are argument vectors; no shell splits them."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    volumes: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    stop_signal: str = ""
    on_host: bool = False
    """Whether the layers lie on the running machine's own programs (the image `host`) and not on nothing."""

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> ImageConfig:
        """From the JSON object; absent and null members are empty."""
        return cls(
            entrypoint=_words(body, "Entrypoint"),
            cmd=_words(body, "Cmd"),
            env=dict(item.split("=", 1) for item in _words(body, "Env") if "=" in item),
            workdir=posixpath.normpath("/" + _text(body, "WorkingDir").lstrip("/")),
            user=_text(body, "User"),
            volumes=tuple(sorted(_object(body, "Volumes"))),
            exposed_ports=tuple(sorted(_object(body, "ExposedPorts"))),
            stop_signal=_text(body, "StopSignal"),
            on_host=_object(body, "Labels").get(_BASE_LABEL) == HOST_IMAGE,
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON object again; empty members are left out."""
        body = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.cmd),
            "Env": [f"{key}={value}" for key, value in self.env.items()],
            "WorkingDir": self.workdir if self.workdir != "/" else "",
            "User": self.user,
            "Volumes": {path: {} for path in self.volumes},
            "ExposedPorts": {port: {} for port in self.exposed_ports},
            "StopSignal": self.stop_signal,
            "Labels": {_BASE_LABEL: HOST_IMAGE} if self.on_host else {},
        }
        return {key: value for key, value in body.items() if value}


@dataclass(frozen=True)
class Process:
    """What is to be started: argument vector, environment, directory."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


def combine(
    config: ImageConfig,
    *,
    entrypoint: Sequence[str] | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Process:
    """As an engine does it: a request's entrypoint replaces the image's and its CMD; env is merged."""
    arguments = tuple(entrypoint) if entrypoint else (*config.entrypoint, *config.cmd)
    if not arguments:
        raise InvalidRequest(
            "the image names no program to start, and the request neither",
            code=Code.INVALID_ENTRYPOINT,
            hint='give an entrypoint as a list, e.g. ["tail", "-f", "/dev/null"]',
        )
    return Process(arguments, {**config.env, **(env or {})}, cwd or config.workdir)


def _words(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key) or ()
    if isinstance(value, str):  # engines take a bare string for a list of one
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
        raise _wrong(key)
    if any("\0" in word for word in value):
        raise _wrong(key)
    return tuple(value)


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key) or ""
    if not isinstance(value, str) or "\0" in value:
        raise _wrong(key)
    return value


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key) or {}
    if not isinstance(value, Mapping):
        raise _wrong(key)
    return value


def _wrong(key: str) -> InvalidRequest:
    return InvalidRequest(f"the image's configuration has a wrong {key}", code=Code.IMAGE_INVALID)
