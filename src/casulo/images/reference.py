# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How images are named, in the words that engines use. Pure.

python:3.12                      docker.io/library/python:3.12
registry.example:5000/team/app   …:latest
name@sha256:…                    exactly this manifest
oci:folder[:tag]                 an OCI image layout on this machine
docker-archive:file[:name:tag]   what `docker save` writes
docker-daemon:name[:tag]         an image of this machine's Docker daemon
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from casulo.model.errors import Code, InvalidRequest

DOCKER, OCI, ARCHIVE, DAEMON = "docker", "oci", "docker-archive", "docker-daemon"
DEFAULT_REGISTRY = "docker.io"
_LONGEST = 255
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::\d+)?"
)
_PATH = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """A name in full. `location` is registry and path, or a file; a digest makes the tag void."""

    transport: str
    location: str
    tag: str = ""
    digest: str = ""

    @property
    def canonical(self) -> str:
        """The one spelling under which the store keeps it."""
        prefix = "" if self.transport == DOCKER else f"{self.transport}:"
        return prefix + self.location + self._suffix

    @property
    def familiar(self) -> str:
        """As short as people write it."""
        if self.transport != DOCKER:
            return self.canonical
        short = self.location.removeprefix(f"{DEFAULT_REGISTRY}/")
        if short != self.location:
            short = short.removeprefix("library/")
        return short + self._suffix

    @property
    def registry(self) -> str:
        """host[:port] of a registry; empty for what is on this machine."""
        return self.location.partition("/")[0] if self.transport == DOCKER else ""

    @property
    def is_local(self) -> bool:
        """Whether it names something on this machine, outside the store."""
        return self.transport != DOCKER

    def at(self, digest: str) -> Reference:
        """The same repository, exactly this manifest."""
        return Reference(self.transport, self.location, "", digest)

    @property
    def _suffix(self) -> str:
        if self.digest:
            return f"@{self.digest}"
        return f":{self.tag}" if self.tag else ""


def parse(text: str) -> Reference:
    """InvalidRequest says what is wrong with `text`."""
    for transport in (OCI, ARCHIVE):
        if text.startswith(f"{transport}:"):
            return _file(transport, text)
    if text.startswith(f"{DAEMON}:"):
        return _named(DAEMON, text.removeprefix(f"{DAEMON}:"), text)
    return _named(DOCKER, text.removeprefix("docker://"), text)


def _file(transport: str, text: str) -> Reference:
    path, _, tag = text.removeprefix(f"{transport}:").partition(":")
    if not path.startswith("/"):
        raise _wrong(text, f"{transport}: needs an absolute path")
    if transport == OCI and tag and not re.fullmatch(r"[A-Za-z0-9_.:/@+-]+", tag):
        raise _wrong(text, f"{tag!r} is no tag")
    if transport == ARCHIVE and tag:
        return Reference(transport, path, _named(DOCKER, tag, text).familiar)
    return Reference(transport, path, tag)


def _named(transport: str, name: str, text: str) -> Reference:
    rest, at, digest = name.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, "a digest is sha256: and 64 hexadecimal digits in lower case")
    rest, tag = _split_tag(rest)
    if tag and not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag!r} is no tag")
    host, path = _split_host(rest)
    if not _HOST.fullmatch(host):
        raise _wrong(text, f"{host!r} is no host name")
    port = host.rpartition(":")[2]
    if port.isdigit() and host != port and not 1 <= int(port) <= 65535:
        raise _wrong(text, f"{port} is no port")
    if not _PATH.fullmatch(path):
        lower = _PATH.fullmatch(path.lower())
        raise _wrong(text, "names are written in lower case" if lower else f"{path!r} is no image name")
    location = f"{host}/{path}"
    if len(location) > _LONGEST:
        raise _wrong(text, f"it is longer than {_LONGEST} characters")
    return Reference(transport, location, "" if digest else tag or "latest", digest)


def _split_tag(name: str) -> tuple[str, str]:
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not tag:
        raise _wrong(name, "the tag after the colon is missing")
    return head + slash + last, tag


def _split_host(name: str) -> tuple[str, str]:
    """A first part with a dot, a port, or `localhost` is a host; everything else is on the default one."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host = DEFAULT_REGISTRY if first == f"index.{DEFAULT_REGISTRY}" else first
    else:
        host, rest = DEFAULT_REGISTRY, name
    return host, rest if host != DEFAULT_REGISTRY or "/" in rest else f"library/{rest}"


def _wrong(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"image: {text!r} is not an image reference: {why}",
        code=Code.INVALID_PARAMETER,
        hint="write for example python:3.12 or registry.example:5000/team/app@sha256:…",
    )
