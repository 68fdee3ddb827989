# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Moving the end of a sandbox's life, by request and by use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from casulo.control.context import Context
from casulo.control.expiry import Expiry
from casulo.model.draft import renew_seconds
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest, sandbox_not_found
from casulo.model.sandbox import Sandbox
from casulo.model.states import State

_REMEMBERED = 10_000
_log = structlog.get_logger(__name__)


class Renewals:
    """Renewals compare and set: they never bring back what expiry or a delete has begun to remove."""

    def __init__(self, context: Context, expiry: Expiry) -> None:
        self._context = context
        self._expiry = expiry
        self._looked_at: OrderedDict[str, float] = OrderedDict()  # id -> loop time of the last look

    async def renew(self, sandbox_id: str, until: datetime) -> datetime:
        """Set the end and return it; it may come sooner than before."""
        now = self._context.now()
        renewed = await self._context.update(sandbox_id, lambda s: _renewed(s, until, now))
        self._expiry.notice(renewed.expires_at)
        return until

    async def accessed(self, sandbox_id: str) -> None:
        """Extend a sandbox that asked for it, at most once in the configured interval."""
        if not self._context.settings.renew_intent.enabled or self._looked_lately(sandbox_id):
            return
        now = self._context.now()
        try:
            await self._context.store.update(sandbox_id, lambda s: _extended(s, now))
        except CasuloError as error:
            self._looked_at.pop(sandbox_id, None)
            _log.warning("renew_on_access.failed", sandbox=sandbox_id, error=str(error))

    def _looked_lately(self, sandbox_id: str) -> bool:
        """Also remembers this look, before anybody else can ask."""
        now = asyncio.get_running_loop().time()
        last = self._looked_at.get(sandbox_id)
        if last is not None and now - last < self._context.settings.renew_intent.min_interval_seconds:
            return True
        self._looked_at[sandbox_id] = now
        self._looked_at.move_to_end(sandbox_id)
        if len(self._looked_at) > _REMEMBERED:
            self._looked_at.popitem(last=False)
        return False


def _renewed(sandbox: Sandbox, until: datetime, now: datetime) -> Sandbox:
    if sandbox.status.state is State.STOPPING:
        raise sandbox_not_found(sandbox.id)
    if sandbox.expires_at is None:
        raise Conflict(
            f"sandbox {sandbox.id} never ends by itself, so there is nothing to renew",
            code=Code.INVALID_EXPIRATION,
            hint="delete it when it is no longer needed",
        )
    if until <= now:
        raise InvalidRequest(
            f"expiresAt {until.isoformat()} is not in the future",
            code=Code.INVALID_EXPIRATION,
            hint=f"the server's clock says {now.isoformat(timespec='seconds')}; delete to end it at once",
        )
    return replace(sandbox, expires_at=until)


def _extended(sandbox: Sandbox, now: datetime) -> Sandbox:
    seconds = renew_seconds(sandbox.spec.extensions)
    if seconds is None or sandbox.expires_at is None or sandbox.status.state is State.STOPPING:
        return sandbox
    until = now + timedelta(seconds=seconds)
    return sandbox if until <= sandbox.expires_at else replace(sandbox, expires_at=until)
