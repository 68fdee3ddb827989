# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From typed errors to HTTP: the one place that knows which status an error has.

Every body holds `code` and `message`, and `hint` where there is a remedy.
"""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

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
)

_BY_CODE = {
    Code.SNAPSHOT_UNSUPPORTED_RUNTIME: 409,
    Code.TEMPLATE_NOT_SUPPORTED: 501,
    Code.POOL_NOT_SUPPORTED: 501,
    Code.POOL_CAPACITY_EXHAUSTED: 429,
    Code.NETWORK_POLICY_NOT_SUPPORTED: 501,
    Code.NETWORK_POLICY_TOO_LARGE: 413,
    Code.VAULT_TOO_LARGE: 413,
    Code.VAULT_NOT_ENABLED: 412,
    Code.VAULT_UNPROTECTED: 426,
    Code.BACKEND_CONNECTION_FAILED: 502,
    Code.BACKEND_RESPONSE_FAILED: 502,
}
_BY_CLASS: dict[type[CasuloError], int] = {
    InvalidRequest: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    RuntimeFailure: 500,
    Unavailable: 503,
    TimedOut: 504,
}
_ROUTING = {404: Code.NO_SUCH_ROUTE, 405: Code.METHOD_NOT_ALLOWED}


def status_of(error: CasuloError) -> int:
    """The HTTP status: by code where a code has its own, else by the nearest class."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((_BY_CLASS[kind] for kind in type(error).__mro__ if kind in _BY_CLASS), 500)


def body_of(error: CasuloError) -> dict[str, str]:
    """The members that clients read."""
    body = {"code": error.code, "message": error.message}
    return {**body, "hint": error.hint} if error.hint else body


def response_to(error: CasuloError) -> Response:
    """The whole answer to a typed error."""
    headers = {"Retry-After": str(math.ceil(error.retry_after))} if isinstance(error, Unavailable) else None
    return json_response(status_of(error), body_of(error), headers)


def unknown_error() -> Response:
    """The answer to a fault of ours: what went wrong is in the log, under the request's id."""
    return json_response(
        500,
        {
            "code": Code.UNKNOWN,
            "message": "the server failed to handle this request",
            "hint": "its log has the details under the X-Request-ID of this answer",
        },
    )


def json_response(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """JSON without spaces, in UTF-8."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Make the framework answer every error of its own in the same form."""
    app.add_exception_handler(CasuloError, _typed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _framework)


async def _typed(_: Request, error: Exception) -> Response:
    assert isinstance(error, CasuloError)
    return response_to(error)


async def _invalid(_: Request, error: Exception) -> Response:
    """422 in the form that OpenSandbox clients know, without echoing what was sent."""
    assert isinstance(error, RequestValidationError)
    details = [{"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()]
    first = "; ".join(f"{'.'.join(str(part) for part in d['loc'])}: {d['msg']}" for d in details[:3])
    return json_response(422, {"detail": details, "code": Code.INVALID_REQUEST, "message": first})


async def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _ROUTING.get(error.status_code, Code.INVALID_REQUEST)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = {"code": code, "message": message, "hint": "GET /openapi.json lists what this server answers"}
    return json_response(error.status_code, body, dict(error.headers or {}))
