# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Webhooks: turns in the life of sandboxes, posted to whom the operator names, signed and tried again.

Messages are kept in the store until they were taken, so a server that ends, or is killed, delivers after
its next start what it owes. They are in order for each receiver and may come twice; only what happened in
the last milliseconds before a kill may be missed. A receiver checks the signature with its secret, and
takes the state of a sandbox from the API where it must be sure.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Sequence

import httpcore
import structlog

from casulo.api.wire import sandbox_body
from casulo.control.events import Event, Events
from casulo.model.errors import CasuloError
from casulo.settings import WebhookSettings
from casulo.store.outbox import Outbox, Owed

_WAITING_AT_MOST = 10_000
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 300.0
_log = structlog.get_logger(__name__)


class Webhooks:
    """One queue and one worker for each receiver, and one task that writes down what comes and goes."""

    def __init__(self, settings: Sequence[WebhookSettings], events: Events, outbox: Outbox) -> None:
        self._outbox = outbox
        self._receivers = {_name(each): _Receiver(each, self._finished) for each in settings}
        self._workers: list[asyncio.Task[None]] = []
        self._fresh: list[Owed] = []
        self._ended: list[str] = []
        self._wake = asyncio.Event()
        self._serial = 0
        if self._receivers:
            events.listen(self._note)

    def start(self) -> None:
        """Begin to deliver, first of all what an earlier process still owed."""
        if not self._receivers:
            return
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(self._keep(), name="webhooks")]
        self._workers += [loop.create_task(each.run(), name="webhook") for each in self._receivers.values()]

    async def close(self) -> None:
        """Stop; what waits is delivered after the next start."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
            await self._write()

    def _note(self, event: Event) -> None:
        delivery_id, body = _message(event)
        for name, receiver in self._receivers.items():
            if receiver.wants(event):
                self._serial = max(self._serial + 1, time.time_ns())
                self._fresh.append(Owed(f"{delivery_id} {name}", name, self._serial, body))
        self._wake.set()

    def _finished(self, owed: Owed) -> None:
        self._ended.append(owed.id)
        self._wake.set()

    async def _keep(self) -> None:
        await self._take_up()
        while True:
            await self._wake.wait()
            self._wake.clear()
            for owed in await self._write():
                self._receivers[owed.receiver].take(owed)

    async def _take_up(self) -> None:
        try:
            left = await self._outbox.all()
        except CasuloError as error:
            _log.error("webhook.outbox_unread", error=str(error))
            return
        for owed in left:
            if owed.receiver in self._receivers:
                self._receivers[owed.receiver].take(owed)
            else:  # nobody asks for it any more
                self._finished(owed)

    async def _write(self) -> list[Owed]:
        """Write down what came and what went; what came may be delivered then, or if it cannot be written."""
        fresh, self._fresh = self._fresh, []
        ended, self._ended = self._ended, []
        try:
            if fresh:
                await self._outbox.put(fresh)
            if ended:
                await self._outbox.done(ended)
        except Exception:  # the edge of a supervisor: what came is delivered even if it cannot be kept
            _log.exception("webhook.outbox_unwritten")
        return fresh


class _Receiver:
    """Posts to one address, one delivery after the other."""

    def __init__(self, settings: WebhookSettings, finished: Callable[[Owed], None]) -> None:
        self._settings = settings
        self._finished = finished
        self._queue: asyncio.Queue[Owed] = asyncio.Queue(_WAITING_AT_MOST)

    def wants(self, event: Event) -> bool:
        """Whether it asked for such events."""
        return not self._settings.events or event.kind in self._settings.events

    def take(self, owed: Owed) -> None:
        """Put it into the queue. One that has no room there waits in the store for the next start."""
        try:
            self._queue.put_nowait(owed)
        except asyncio.QueueFull:
            _log.error("webhook.deferred", url=self._settings.url, id=owed.id)

    async def run(self) -> None:
        """Until cancelled."""
        async with httpcore.AsyncConnectionPool(max_connections=1) as pool:
            while True:
                owed = await self._queue.get()
                await self._deliver(pool, owed)
                self._finished(owed)

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
