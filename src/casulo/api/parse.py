# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From what came over the wire to what the domain understands; what it cannot honour is refused here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl

from casulo.api.wire import CreateSandboxRequest, ImageSpec, Lifecycle
from casulo.api.wire_volumes import volumes_of
from casulo.model.credentials import Credentials
from casulo.model.draft import Draft
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.policywire import parse_policy
from casulo.model.sandbox import Hook, Platform
from casulo.model.snapshot import SnapshotState
from casulo.model.states import State
from casulo.model.template import is_template, template_not_found

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_STATES = {state.lower(): state for state in State}

_REFUSED: list[tuple[Callable[[CreateSandboxRequest], object], str, str, str]] = [
    (
        lambda r: r.secureAccess,
        Code.NOT_SUPPORTED,
        "secureAccess: this server has no secured endpoints",
        "leave it out; the daemon of every sandbox is guarded by a token of its own anyway",
    ),
]


def draft_of(request: CreateSandboxRequest) -> Draft:
    """The domain's form of a create request. Raises Unsupported for what only later versions can do."""
    for asked_for, code, message, hint in _REFUSED:
        if asked_for(request):
            raise Unsupported(message, code=code, hint=hint)
    # Every other source was refused; the image of a snapshot or a pool is filled in where that is known.
    return Draft(
        image=request.image.uri if request.image else "",
        snapshot_id=_kept(request),
        entrypoint=tuple(request.entrypoint) if request.entrypoint is not None else None,
        resource_limits=request.resourceLimits or {},
        env={key: value for key, value in (request.env or {}).items() if value is not None},
        metadata=request.metadata or {},
        extensions=request.extensions or {},
        platform=Platform(request.platform.os, request.platform.arch) if request.platform else None,
        timeout_seconds=request.timeout,
        pre_start=_pre_start(request.lifecycle),
        periodic=_periodic(request.lifecycle),
        volumes=volumes_of(request.volumes),
        credentials=_credentials(request.image),
        network_policy=None if request.networkPolicy is None else parse_policy(request.networkPolicy),
        credential_proxy=request.credentialProxy is not None and request.credentialProxy.enabled,
    )


def _kept(request: CreateSandboxRequest) -> str | None:
    """What the sandbox begins with, if that is no image. A template is kept as a snapshot is."""
    if request.templateId is None:
        return (request.snapshotId or "").strip() or None
    if not is_template(request.templateId):
        raise template_not_found(request.templateId)
    return request.templateId


def _credentials(image: ImageSpec | None) -> Credentials | None:
    return Credentials(image.auth.username, image.auth.password) if image and image.auth else None


def _pre_start(lifecycle: Lifecycle | None) -> Hook | None:
    if lifecycle is None or lifecycle.preStart is None:
        return None
    return Hook(tuple(lifecycle.preStart.command), lifecycle.preStart.timeoutSeconds)


def _periodic(lifecycle: Lifecycle | None) -> tuple[Hook, ...]:
    hooks = (lifecycle.periodic if lifecycle else None) or ()
    return tuple(Hook(tuple(h.command), h.timeoutSeconds, h.name, h.schedule) for h in hooks)


def states_of(texts: Iterable[str]) -> frozenset[State] | None:
    """The states of a list filter, in any case. None when only states are asked for that no sandbox has."""
    wanted = [text.strip().lower() for text in texts]
    known = frozenset(_STATES[text] for text in wanted if text in _STATES)
    return None if wanted and not known else known


def snapshot_states_of(texts: Iterable[str]) -> frozenset[SnapshotState] | None:
    """The same for snapshots."""
    wanted = [text.strip().lower() for text in texts]
    known = frozenset(state for state in SnapshotState if state.lower() in wanted)
    return None if wanted and not known else known


def metadata_filter(texts: Iterable[str]) -> dict[str, str]:
    """The pairs of a metadata filter: a query string inside a query parameter, encoded once more."""
    pairs: dict[str, str] = {}
    for text in texts:
        for key, value in _pairs(text):
            if pairs.setdefault(key, value) != value:
                raise _malformed(f"{key!r} is given two values")
    return pairs


def _pairs(text: str) -> list[tuple[str, str]]:
    if not text:
        return []
    if _BAD_ESCAPE.search(text):
        raise _malformed("'%' is not followed by two hexadecimal digits")
    try:
        return parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError as error:  # a character that is not UTF-8 is one of these
        raise _malformed(str(error)) from None


def _malformed(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"metadata filter: {what}",
        code=Code.INVALID_METADATA_FORMAT,
        hint="write key=value&key=value, percent-encode each key and value, then encode the whole",
    )


def port_of(text: str) -> int:
    """A port from a path segment."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise InvalidRequest(f"{text!r} is not a port", code=Code.INVALID_PORT, hint="use 1 to 65535")
    return int(text)
