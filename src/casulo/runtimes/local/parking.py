# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Containers that are started ahead: everything is there but the boot message of their daemon.

Nothing needs to be undone after a crash: with the server its end of the boot channel goes, and the
daemon, which has run nothing yet, ends with it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from casulo.model.errors import TimedOut
from casulo.model.sandbox import Handle, Spec
from casulo.runtimes import bootchannel, parked
from casulo.runtimes.base import Deaf
from casulo.runtimes.local.starting import Started, Starter, Waiting
from casulo.runtimes.policing import HostEgress

_ANSWER_SECONDS = 3.0
"""An idle daemon is ready in a few milliseconds."""


Begin = Callable[[str, Callable[[], Waiting]], Awaitable[Waiting]]
"""Runs the first half of a start in a worker thread; an error leaves nothing of the sandbox behind."""

Find = Callable[[str, Started], Awaitable[Handle]]
"""Finds out where a started sandbox is, and watches it."""


class LocalParking:
    """Keeps the open ends of boot channels."""

    def __init__(self, starter: Starter, begin: Begin, find: Find, egress: HostEgress | None) -> None:
        self._starter = starter
        self._egress = egress
        self._begin = begin
        self._find = find
        self._waiting: dict[str, Waiting] = {}

    def can(self, spec: Spec) -> bool:
        """Whatever does not go on from somebody's memory."""
        return self._starter.can_park(spec)

    async def park(self, sandbox_id: str, spec: Spec) -> None:
        """Start the container and let its daemon wait."""
        self._waiting[sandbox_id] = await self._begin(
            sandbox_id, functools.partial(self._starter.park, sandbox_id, spec)
        )

    async def adopt(self, sandbox_id: str, spec: Spec) -> Handle:
        """Put it under its policy, send the boot message, and wait until the daemon is ready."""
        waiting = self._waiting.pop(sandbox_id, None)
        if waiting is None:
            raise Deaf(f"{sandbox_id} is not parked any more")
        limit = bootchannel.start_limit(_ANSWER_SECONDS, spec)
        document = self._starter.document(waiting, spec)
        try:
            # No thread: it costs more than the message.
            with waiting.channel as channel, bootchannel.told_with(waiting.box.folder.daemon_log):
                if spec.network_policy is not None and self._egress is not None:
                    await self._egress.apply(sandbox_id, spec.network_policy)
                await bootchannel.handshake(channel, document, {}, limit)
        except (bootchannel.Silent, TimedOut) as error:
            raise Deaf(f"{sandbox_id} did not answer: {error.message}") from error
        return await self._find(sandbox_id, Started(waiting.pid, waiting.since, document.access_token))

    def ready(self, sandbox_id: str) -> bool:
        """Its process is there and not stopped, and has not hung up."""
        waiting = self._waiting.get(sandbox_id)
        return waiting is not None and parked.ready(waiting.pid, waiting.since, waiting.channel)

    def forget(self, sandbox_id: str) -> None:
        """Hang up; the daemon then ends by itself. Idempotent."""
        waiting = self._waiting.pop(sandbox_id, None)
        if waiting is not None:
            waiting.channel.close()
