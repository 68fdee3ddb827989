# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Idempotency keys: what is one, how it is stored, and the refusal of one that stands for something else."""

from __future__ import annotations

import hashlib

from casulo.model.errors import Code, Conflict, InvalidRequest, Unavailable
from casulo.model.keys import Caller
from casulo.model.sandbox import Sandbox

MAX_KEY_LENGTH = 255


def check_key(key: str) -> None:
    """InvalidRequest for what is no key."""
    if not key or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise InvalidRequest(
            f"the idempotency key must have 1 to {MAX_KEY_LENGTH} printable characters",
            code=Code.INVALID_PARAMETER,
            hint="a random UUID is a good key",
        )


def key_of(caller: Caller, key: str) -> str:
    """The key as it is stored: two owners may use the same one for two sandboxes."""
    return f"{caller.owner}/{hashlib.sha256(key.encode()).hexdigest()}" if caller.owner else key


def key_conflict(why: str) -> Conflict:
    """The key cannot be used for this request."""
    return Conflict(
        f"the idempotency key {why}",
        code=Code.IDEMPOTENCY_CONFLICT,
        hint="use a new key for a new sandbox",
    )


def not_undone(sandbox: Sandbox) -> Unavailable:
    """A create failed, and what it left cannot be removed, as while an engine is away."""
    return Unavailable(
        f"an earlier try of this create is not undone yet: {sandbox.status.message or 'it is being removed'}",
        code=Code.RUNTIME_UNAVAILABLE,
        hint="the server goes on trying; ask again in a while",
        retry_after=5,
    )
