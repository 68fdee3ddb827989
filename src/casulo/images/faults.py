# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What skopeo says when it fails, as errors that say whose turn it is. Pure."""

from __future__ import annotations

import re

from casulo.images.reference import DAEMON, Reference
from casulo.model.errors import CasuloError, Code, InvalidRequest, NotFound, TimedOut, Unavailable

_DENIED = re.compile(
    r"unauthorized|authentication required|denied|invalid username/password|forbidden"
    r"|no basic auth credentials",
    re.I,
)
_MISSING = re.compile(
    r"manifest unknown|name unknown|not found|no such (image|file)|does not exist"
    r"|repository name not known"
    r"|reference does not exist|NAME_UNKNOWN|MANIFEST_UNKNOWN",
    re.I,
)
_NO_HOST = re.compile(r"\blookup \S+.*(no such host|server misbehaving|temporary failure|i/o timeout)", re.I)
_CERTIFICATE = re.compile(r"x509:|certificate|server gave HTTP response to HTTPS client", re.I)
_DAMAGED = re.compile(r"error processing tar file(?!.*no space left)", re.I)
_DAEMON = re.compile(r"cannot connect to the docker daemon|docker\.sock", re.I)
_LEVEL = re.compile(r'^time="[^"]*" level=\w+ msg="?')
_LONGEST = 600


def explained(reference: Reference, words: str) -> CasuloError:
    """The error for an image whose source answered with `words`."""
    said, name = _tidy(words), reference.familiar
    if reference.transport == DAEMON and _DAEMON.search(said):
        return Unavailable(
            f"image {name}: the Docker daemon does not answer: {said}",
            code=Code.IMAGE_PULL_FAILED,
            hint="start it, or set DOCKER_HOST",
        )
    if _NO_HOST.search(said):
        return Unavailable(
            f"image {name}: the address of {reference.registry} is not known: {said}",
            code=Code.IMAGE_PULL_FAILED,
            hint="check the registry's name, and whether this machine's name servers answer",
        )
    if _CERTIFICATE.search(said):
        return Unavailable(
            f"image {name}: {reference.registry} is not trusted: {said}",
            code=Code.IMAGE_PULL_FAILED,
            hint=f'add its CA to the host, or set [images.registries."{reference.registry}"] insecure = true',
        )
    if _DENIED.search(said):
        return InvalidRequest(
            f"image {name}: access denied: {said}",
            code=Code.IMAGE_ACCESS_DENIED,
            hint="check the name, and give a username and a password that may read it",
        )
    if _DAMAGED.search(said):
        return InvalidRequest(
            f"image {name} cannot be unpacked: {said}", code=Code.IMAGE_INVALID, hint="build it again"
        )
    if _MISSING.search(said):
        return NotFound(
            f"image {name} was not found: {said}", code=Code.IMAGE_NOT_FOUND, hint="check name and tag"
        )
    return Unavailable(
        f"image {name} could not be fetched: {said}",
        code=Code.IMAGE_PULL_FAILED,
        hint="try again",
        retry_after=5,
    )


def silent(reference: Reference, seconds: float) -> TimedOut:
    """The source accepted and then said nothing."""
    where = reference.registry or reference.transport
    return TimedOut(
        f"image {reference.familiar}: {where} sent nothing for {seconds:g} s",
        code=Code.IMAGE_PULL_TIMEOUT,
        hint="try again; [images] stall_timeout_seconds is how long it may be silent",
    )


def _tidy(words: str) -> str:
    """The last line without its log dressing: skopeo's own summary."""
    lines = [line.strip() for line in words.strip().splitlines() if line.strip()]
    last = _LEVEL.sub("", lines[-1]).rstrip('"').replace('\\"', '"') if lines else "it gave no reason"
    return last if len(last) <= _LONGEST else f"…{last[-_LONGEST:]}"
