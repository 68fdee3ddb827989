# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Webhooks: turns in the life of sandboxes, posted to whom the operator names, signed and tried again.

Deliveries wait in memory: they are in order for each receiver and may come twice, and those that a
server still owes when it ends are lost. A receiver checks the signature with its secret, and takes
the state of a sandbox from the API where it must be sure.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import httpcore
import structlog

from casulo.api.wire import sandbox_body
from casulo.control.events import Event, Events
from casulo.settings import WebhookSettings

_WAITING_AT_MOST = 10_000
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 300.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Delivery:
    """One message, with an id by which a receiver knows that it came twice."""

    id: str
    body: bytes


class Webhooks:
    """One queue and one worker for each receiver."""

    def __init__(self, settings: Sequence[WebhookSettings], events: Events) -> None:
        self._receivers = [_Receiver(each) for each in settings]
        self._workers: list[asyncio.Task[None]] = []
        if self._receivers:
            events.listen(self._note)

    def start(self) -> None:
        """Begin to deliver."""
        loop = asyncio.get_running_loop()
        self._workers = [
            loop.create_task(receiver.run(), name=f"webhook {n}")
            for n, receiver in enumerate(self._receivers)
        ]

    async def close(self) -> None:
        """Stop; what waits is lost."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)

    def _note(self, event: Event) -> None:
        delivery = _delivery(event)
        for receiver in self._receivers:
            receiver.take(event, delivery)


class _Receiver:
    """Posts to one address, one delivery after the other."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue(_WAITING_AT_MOST)

    def take(self, event: Event, delivery: Delivery) -> None:
        """Put it into the queue, if the receiver wants such events."""
        if self._settings.events and event.kind not in self._settings.events:
            return
        try:
            self._queue.put_nowait(delivery)
        except asyncio.QueueFull:
            _log.error("webhook.dropped", url=self._settings.url, kind=event.kind, sandbox=event.sandbox.id)

    async def run(self) -> None:
        """Until cancelled."""
        async with httpcore.AsyncConnectionPool(max_connections=1) as pool:
            while True:
                await self._deliver(pool, await self._queue.get())

    async def _deliver(self, pool: httpcore.AsyncConnectionPool, delivery: Delivery) -> None:
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, self._settings.attempts + 1):
            told = await self._post(pool, delivery)
            if not told:
                return
            last = attempt == self._settings.attempts
            _log.warning("webhook.failed", url=self._settings.url, why=told, attempt=attempt, given_up=last)
            if not last:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _post(self, pool: httpcore.AsyncConnectionPool, delivery: Delivery) -> str:
        """Empty when it was taken, else why not."""
        limit = self._settings.timeout_seconds
        try:
            answer = await pool.request(
                "POST",
                self._settings.url,
                headers=self._headers(delivery),
                content=delivery.body,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), limit)},
            )
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"

    def _headers(self, delivery: Delivery) -> list[tuple[str | bytes, str | bytes]]:
        return [
            ("Content-Type", "application/json"),
            ("Casulo-Delivery", delivery.id),
            ("Casulo-Signature", signature(self._settings.secret, int(time.time()), delivery.body)),
        ]


def signature(secret: str, moment: int, body: bytes) -> str:
    """`t=<seconds>,v1=<HMAC-SHA256 in hex of "<seconds>.<body>">`; an old time tells a replay."""
    mac = hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256)
    return f"t={moment},v1={mac.hexdigest()}"


def _delivery(event: Event) -> Delivery:
    delivery_id = str(uuid.uuid4())
    body = {
        "id": delivery_id,
        "type": event.kind,
        "at": event.at.isoformat(),
        "reason": event.reason,
        "owner": event.sandbox.owner,
        "sandbox": sandbox_body(event.sandbox).model_dump(mode="json", exclude_none=True),
    }
    return Delivery(delivery_id, json.dumps(body).encode())
