# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Webhooks: turns in the life of sandboxes, posted to whom the operator names, signed and tried again.

A message is written in the transaction of the change that it tells of, and stays in the store until it was
taken, so a server that ends, or is killed at any moment, delivers after its next start what it owes. They
are in order for each receiver and may come twice. A receiver checks the signature with its secret, and
takes the state of a sandbox from the API where it must be sure.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Sequence

import httpcore
import structlog

from casulo.api.wire import sandbox_body
from casulo.control.events import Event, turn
from casulo.model.errors import CasuloError
from casulo.model.sandbox import Sandbox
from casulo.settings import WebhookSettings
from casulo.store.outbox import Outbox, Owed
from casulo.store.query import Tombstone

_AT_ONCE = 100
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 300.0
_log = structlog.get_logger(__name__)


class Webhooks:
    """Composes what the store keeps, and has one worker for each receiver, which empties it."""

    def __init__(self, settings: Sequence[WebhookSettings], outbox: Outbox) -> None:
        self._outbox = outbox
        self._receivers = {_name(each): _Receiver(each, outbox) for each in settings}
        self._workers: list[asyncio.Task[None]] = []
        self._serial = 0
        if self._receivers:
            outbox.compose_with(self._compose, self._arrived)

    def start(self) -> None:
        """Begin to deliver, first of all what an earlier process still owed."""
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(each.run(), name="webhook") for each in self._receivers.values()]
        self._workers.append(loop.create_task(self._forget_others(), name="webhooks"))

    async def close(self) -> None:
        """Stop; what waits is delivered after the next start."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)

    def _compose(self, before: Sandbox, after: Sandbox | Tombstone) -> list[Owed]:
        """In the store's thread."""
        event = turn(before, after)
        takers = [name for name, each in self._receivers.items() if event and each.wants(event)]
        if not event or not takers:
            return []
        delivery_id, body = _message(event)
        self._serial = max(self._serial + 1, time.time_ns())
        return [Owed(f"{delivery_id} {name}", name, self._serial, body) for name in takers]

    def _arrived(self) -> None:
        for receiver in self._receivers.values():
            receiver.wake.set()

    async def _forget_others(self) -> None:
        try:
            await self._outbox.keep_only(self._receivers)
        except CasuloError as error:  # the next start tries again
            _log.error("webhook.outbox_unread", error=str(error))


class _Receiver:
    """Posts to one address, one delivery after the other."""

    def __init__(self, settings: WebhookSettings, outbox: Outbox) -> None:
        self._settings = settings
        self._outbox = outbox
        self._name = _name(settings)
        self.wake = asyncio.Event()

    def wants(self, event: Event) -> bool:
        """Whether it asked for such events."""
        return not self._settings.events or event.kind in self._settings.events

    async def run(self) -> None:
        """Until cancelled."""
        async with httpcore.AsyncConnectionPool(max_connections=1) as pool:
            while True:
                self.wake.clear()
                try:
                    if not await self._round(pool):
                        await self.wake.wait()
                except Exception:  # the edge of a supervisor: a store that is away comes back
                    _log.exception("webhook.round_failed", url=self._settings.url)
                    await asyncio.sleep(_FIRST_PAUSE_SECONDS)

    async def _round(self, pool: httpcore.AsyncConnectionPool) -> bool:
        """Deliver some of what it is owed; whether there was any."""
        waiting = await self._outbox.next(self._name, _AT_ONCE)
        for owed in waiting:
            await self._deliver(pool, owed)
            await self._outbox.done(owed)
        return bool(waiting)

    async def _deliver(self, pool: httpcore.AsyncConnectionPool, owed: Owed) -> None:
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, self._settings.attempts + 1):
            told = await self._post(pool, owed)
            if not told:
                return
            last = attempt == self._settings.attempts
            _log.warning("webhook.failed", url=self._settings.url, why=told, attempt=attempt, given_up=last)
            if not last:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _post(self, pool: httpcore.AsyncConnectionPool, owed: Owed) -> str:
        """Empty when it was taken, else why not."""
        limit, body = self._settings.timeout_seconds, owed.body.encode()
        try:
            answer = await pool.request(
                "POST",
                self._settings.url,
                headers=self._headers(owed.id.partition(" ")[0], body),
                content=body,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), limit)},
            )
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"

    def _headers(self, delivery_id: str, body: bytes) -> list[tuple[str | bytes, str | bytes]]:
        return [
            ("Content-Type", "application/json"),
            ("Casulo-Delivery", delivery_id),
            ("Casulo-Signature", signature(self._settings.secret, int(time.time()), body)),
        ]


def signature(secret: str, moment: int, body: bytes) -> str:
    """`t=<seconds>,v1=<HMAC-SHA256 in hex of "<seconds>.<body>">`; an old time tells a replay."""
    mac = hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256)
    return f"t={moment},v1={mac.hexdigest()}"


def _name(settings: WebhookSettings) -> str:
    """By which the store knows a receiver: addresses may hold secrets."""
    return hashlib.sha256(settings.url.encode()).hexdigest()[:32]


def _message(event: Event) -> tuple[str, str]:
    """An id by which a receiver knows that it came twice, and the body."""
    delivery_id = str(uuid.uuid4())
    body = {
        "id": delivery_id,
        "type": event.kind,
        "at": event.at.isoformat(),
        "reason": event.reason,
        "owner": event.sandbox.owner,
        "sandbox": sandbox_body(event.sandbox).model_dump(mode="json", exclude_none=True),
    }
    return delivery_id, json.dumps(body)
