# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Answers with a failure status come back as the errors that the server raised."""

from __future__ import annotations

import json

import pytest

from casulo.api.errors import body_of, status_of
from casulo.client import faults
from casulo.model.errors import (
    CasuloError,
    Code,
    Conflict,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unsupported,
    sandbox_not_found,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad", code=Code.INVALID_PARAMETER, hint="do better"),
        Unsupported("no gpu", code=Code.NOT_SUPPORTED),
        Unauthenticated("who", code=Code.MISSING_API_KEY),
        sandbox_not_found("x"),
        Conflict("paused", code=Code.SANDBOX_NOT_RUNNING),
        Unavailable("full", code=Code.CAPACITY_EXHAUSTED),
        RuntimeFailure("broke", code=Code.SANDBOX_START_FAILED),
        TimedOut("slow", code=Code.SANDBOX_START_TIMEOUT),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_the_wire(error: CasuloError) -> None:
    answer = json.dumps(body_of(error)).encode()
    found = faults.from_answer(status_of(error), {"x-request-id": "r1"}, answer)
    assert type(found) is type(error)
    assert (found.code, found.message, found.hint) == (error.code, error.message, error.hint)
    assert found.__notes__ == ["request id r1"]


def test_retry_after_is_kept() -> None:
    found = faults.from_answer(429, {"retry-after": "7"}, b"{}")
    assert isinstance(found, Unavailable)
    assert found.retry_after == 7.0


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail": "x"}'])
def test_foreign_bodies_are_shown_not_swallowed(body: bytes) -> None:
    found = faults.from_answer(404, {}, body)
    assert isinstance(found, NotFound)
    assert "404" in found.message


def test_wrapped_details_are_unwrapped() -> None:
    found = faults.from_answer(409, {}, b'{"detail": {"code": "C", "message": "m"}}')
    assert (type(found), found.code, found.message) == (Conflict, "C", "m")
