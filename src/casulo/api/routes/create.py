# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Creating on behalf of a caller that may go away while it waits."""

from __future__ import annotations

import asyncio
import hashlib
import json

import structlog
from fastapi import Request

from casulo.control.access import Access
from casulo.model.draft import Draft
from casulo.model.errors import Code, Unavailable
from casulo.model.sandbox import Sandbox

_log = structlog.get_logger(__name__)


async def create_or_cancel(
    lifecycle: Access, request: Request, draft: Draft, idempotency_key: str | None
) -> Sandbox:
    """The new sandbox. If the caller leaves first and could not ask again, it is undone."""
    if idempotency_key is not None:
        request_hash = _hash(await request.body())
        return await lifecycle.create(draft, idempotency_key=idempotency_key, request_hash=request_hash)
    creation = asyncio.ensure_future(lifecycle.create(draft))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([creation, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return creation.result()
        return await _undo(lifecycle, creation)
    finally:
        leaving.cancel()
        creation.cancel()
        await asyncio.wait([leaving, creation])


async def _undo(lifecycle: Access, creation: asyncio.Future[Sandbox]) -> Sandbox:
    creation.cancel()
    await asyncio.wait([creation])
    if not creation.cancelled() and creation.exception() is None:
        await lifecycle.delete(creation.result().id)
    _log.info("create.caller_gone")
    raise Unavailable("the caller went away before the sandbox was there", code=Code.UNKNOWN)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _hash(body: bytes) -> str:
    """The same for two bodies that mean the same JSON."""
    return hashlib.sha256(json.dumps(json.loads(body), sort_keys=True).encode()).hexdigest()
