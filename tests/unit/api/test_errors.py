# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which status a typed error has."""

from __future__ import annotations

import json

import pytest

from casulo.api import errors
from casulo.model import errors as model
from casulo.model.errors import CasuloError, Code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (model.InvalidRequest("m", code=Code.INVALID_PARAMETER), 400),
        (model.Unsupported("m", code=Code.NOT_SUPPORTED), 400),
        (model.Unsupported("m", code=Code.TEMPLATE_NOT_SUPPORTED), 501),
        (model.Unauthenticated("m", code=Code.MISSING_API_KEY), 401),
        (model.sandbox_not_found("x"), 404),
        (model.Conflict("m", code=Code.SANDBOX_NOT_RUNNING), 409),
        (model.RuntimeFailure("m", code=Code.SANDBOX_START_FAILED), 500),
        (model.RuntimeFailure("m", code=Code.BACKEND_CONNECTION_FAILED), 502),
        (model.Unavailable("m"), 503),
        (model.TimedOut("m", code=Code.BACKEND_TIMEOUT), 504),
        (CasuloError("m"), 500),
    ],
    ids=lambda value: getattr(value, "code", value),
)
def test_statuses(error: CasuloError, status: int) -> None:
    assert errors.response_to(error).status_code == status


def test_every_class_of_error_has_a_status() -> None:
    kinds = [kind for kind in vars(model).values() if isinstance(kind, type)]
    found = [kind for kind in kinds if issubclass(kind, CasuloError)]
    assert len(found) > 8
    for kind in found:
        assert errors.status_of(kind("m")) in range(400, 505)


def test_bodies() -> None:
    answer = errors.response_to(model.Unavailable("busy", code="C", retry_after=1.2))
    assert json.loads(answer.body) == {"code": "C", "message": "busy"}
    assert answer.headers["retry-after"] == "2"
    assert errors.body_of(model.NotFound("m", code="C", hint="h")) == {
        "code": "C",
        "message": "m",
        "hint": "h",
    }
