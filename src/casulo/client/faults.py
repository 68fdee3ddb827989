# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Errors as the client raises them: what the wire said, rebuilt as the types of `casulo.model.errors`.

Three more exist only on this side of the wire:

    Unavailable
    ├── Unreachable      no connection could be made; nothing was sent
    └── Disconnected     the connection broke; the request may or may not have been served
    RuntimeFailure
    └── StreamBroken     a command's output ended without its end mark and could not be taken up again
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from casulo.model.errors import (
    CasuloError,
    Code,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

CONNECTION_FAILED = "CLIENT::CONNECTION_FAILED"
DISCONNECTED = "CLIENT::DISCONNECTED"
STREAM_BROKEN = "CLIENT::STREAM_BROKEN"
REQUEST_TIMEOUT = "CLIENT::REQUEST_TIMEOUT"
BAD_ANSWER = "CLIENT::BAD_ANSWER"

_LONGEST = 2000

_BY_STATUS: dict[int, type[CasuloError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: InvalidRequest,
    413: InvalidRequest,
    416: InvalidRequest,
    422: InvalidRequest,
    426: InvalidRequest,
    429: Unavailable,
    501: Unsupported,
    503: Unavailable,
    504: TimedOut,
}
_UNSUPPORTED = frozenset(
    {
        Code.NOT_SUPPORTED,
        Code.API_NOT_SUPPORTED,
        Code.ISOLATION_UNAVAILABLE,
        Code.IMAGE_UNSUPPORTED,
        Code.VOLUME_UNSUPPORTED,
        Code.SNAPSHOT_UNSUPPORTED_RUNTIME,
        Code.TEMPLATE_NOT_SUPPORTED,
        Code.POOL_NOT_SUPPORTED,
        Code.HOST_UNSUPPORTED,
        "NOT_SUPPORTED",
    }
)


class Unreachable(Unavailable):
    """No connection could be made; the request was not sent."""


class Disconnected(Unavailable):
    """The connection broke before the answer was complete."""


class StreamBroken(RuntimeFailure):
    """Output of command `command_id` is known up to byte `offset`; how it ended is not."""

    def __init__(self, message: str, *, command_id: str, offset: int, hint: str = "") -> None:
        super().__init__(message, code=STREAM_BROKEN, hint=hint)
        self.command_id = command_id
        self.offset = offset


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> CasuloError:
    """The error that an answer with a failure status stands for."""
    fields = _fields(body)
    code = str(fields.get("code") or Code.UNKNOWN)
    message = str(fields.get("message") or fields.get("error") or _words(status, headers, body))
    hint = str(fields.get("hint") or "")
    kind = _kind(status, code)
    if issubclass(kind, Unavailable):
        error: CasuloError = kind(message, code=code, hint=hint, retry_after=_retry_after(headers))
    else:
        error = kind(message, code=code, hint=hint)
    request_id = headers.get("x-request-id", "")
    if request_id:
        error.add_note(f"request id {request_id}")
    return error


def _kind(status: int, code: str) -> type[CasuloError]:
    if code in _UNSUPPORTED and status in (400, 409, 422, 501, 503):
        return Unsupported
    return _BY_STATUS.get(status, RuntimeFailure)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    detail = parsed.get("detail")
    return detail if isinstance(detail, dict) and "message" in detail else parsed


def _words(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """A refusal in plain words is its own message, as at the port of policies and vaults."""
    plain = headers.get("content-type", "").startswith("text/plain") and 400 <= status < 500
    text = body[:_LONGEST].decode("utf-8", "replace").strip()
    return text if plain and text else _bare(status, body)


def _bare(status: int, body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace").strip()
    return f"the server answered {status}" + (f": {text}" if text else "")


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("retry-after", "1")))
    except ValueError:
        return 1.0
