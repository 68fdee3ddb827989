# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Answers made of wire models, and how they are documented."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from pydantic import BaseModel

from casulo.api.wire import ErrorBody, ValidationErrorBody

_ERRORS = {
    400: "The request is wrong, or asks for what this server cannot do.",
    401: "The API key is missing or wrong.",
    403: "The key may not do this, or not this much.",
    404: "There is no such object (any more).",
    409: "The object is in a state that forbids this.",
    413: "The policy has too many rules.",
    500: "The server or the runtime failed.",
    501: "This version of the server cannot do this.",
    503: "Not now; the same request may succeed later.",
}


def model(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON of a wire model, without its absent members."""
    text = body.model_dump_json(exclude_none=True)
    return Response(text, status, headers, media_type="application/json")


def empty(status: int = 204) -> Response:
    """No body."""
    return Response(status_code=status)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documentation of the errors of a route; 401, 422 and 500 are possible everywhere."""
    documented: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": _ERRORS[status]} for status in (*statuses, 401, 500)
    }
    documented[422] = {"model": ValidationErrorBody, "description": "The request has not the right form."}
    return documented
