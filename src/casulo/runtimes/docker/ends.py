# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Seeing that containers ended, and how. The engine tells; nothing is asked repeatedly.

How a sandbox ended is the last line that its daemon printed, which the engine keeps with the container.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import structlog

from casulo.model.errors import CasuloError
from casulo.model.sandbox import Exit
from casulo.runtimes import endings
from casulo.runtimes.base import ChangeListener
from casulo.runtimes.docker.engine import Absent, Busy, Engine, explained, to_its_end
from casulo.runtimes.docker.plan import SANDBOX_LABEL, Names

_RETRY_SECONDS = 1.0
_CHANGES = ("pause", "unpause", "rename")
"""What others may do to a container without ending it."""

_OWN_LINES = 2
"""Lines of the boot stream, which the engine counts though they are not asked for."""

_log = structlog.get_logger(__name__)


class Ends:
    """Calls back once for each watched sandbox whose container ended, also after a lost connection.

    What others do to containers besides is told to `on_change`: it does not harm to hear of one's own acts.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        on_end: Callable[[str], Awaitable[None]],
        on_change: ChangeListener,
    ) -> None:
        self._engine = engine
        self._names = names
        self._on_end = on_end
        self._on_change = on_change
        self._watched: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to listen."""
        self._task = asyncio.get_running_loop().create_task(self._listen(), name="docker events")

    async def close(self) -> None:
        """Listen no longer."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def watch(self, sandbox_id: str) -> None:
        """Tell when this sandbox ends. Whoever calls looks afterwards whether it is still there."""
        self._watched.add(sandbox_id)

    def drop(self, sandbox_id: str) -> None:
        """Watch no longer. Idempotent."""
        self._watched.discard(sandbox_id)

    def soon(self, sandbox_id: str) -> None:
        """As `ended`, once the caller is done."""
        task = asyncio.get_running_loop().create_task(self.ended(sandbox_id))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def ended(self, sandbox_id: str) -> None:
        """Tell it, unless that was done or is not wanted."""
        if sandbox_id in self._watched:
            self._watched.discard(sandbox_id)
            try:
                await self._on_end(sandbox_id)
            except CasuloError:  # it is told when the events are taken up again
                self._watched.add(sandbox_id)
                raise

    async def _listen(self) -> None:
        """Supervisor: a lost connection is taken up again, and what happened meanwhile is found out."""
        while True:
            try:
                await self._follow()
            except CasuloError as error:
                _log.warning("docker.events_lost", error=error.message)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self) -> None:
        with explained("say what time it is"):
            info = await self._engine.docker.system.info()
        wanted = {"type": ["container"], "event": ["die", *_CHANGES], "label": [self._names.label_filter]}
        filters = json.dumps(wanted)
        events = self._engine.docker.events
        subscriber = events.subscribe(create_task=False)
        running = asyncio.create_task(events.run(filters=filters, since=_seconds(info["SystemTime"])))
        try:
            await self._look_at_all()
            while (event := await subscriber.get()) is not None:
                await self._noted(event)
        finally:
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled():
            with explained("go on telling events"):
                running.result()

    async def _noted(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor") or {}
        attributes = actor.get("Attributes") or {}
        sandbox_id, action = str(attributes.get(SANDBOX_LABEL, "")), event.get("Action")
        ours = self._names.container(sandbox_id)
        if action == "rename" and str(attributes.get("oldName", "")).lstrip("/") == ours:
            await name_again(self._engine, str(actor.get("ID", "")), ours)
        elif attributes.get("name") != ours:
            return
        elif action == "die":
            await self.ended(sandbox_id)
        elif action in _CHANGES:
            self._on_change(sandbox_id)

    async def _look_at_all(self) -> None:
        for sandbox_id in list(self._watched):
            state = await state_of(self._engine, self._names.container(sandbox_id))
            if state.get("Running"):
                self._on_change(sandbox_id)
            else:
                await self.ended(sandbox_id)


async def name_again(engine: Engine, container: str, name: str) -> None:
    """Everything finds a container by its name, so one that somebody renamed gets it back."""
    _log.warning("docker.renamed", container=container, name=name)
    try:
        with explained("give a container its name back"):
            await to_its_end(engine.container(container).rename(name))
    except (Absent, Busy) as reason:  # it is gone, or has it back already
        _log.info("docker.not_renamed", name=name, reason=reason.message)


async def state_of(engine: Engine, container: str) -> dict[str, Any]:
    """The engine's `State` of a container; empty when there is no such container."""
    found = await engine.show(container)
    return dict(found["State"]) if found else {}


async def exit_of(engine: Engine, container: str) -> Exit | None:
    """How an ended container's entrypoint ended; None while it runs, or when there is nothing to ask."""
    state = await state_of(engine, container)
    if not state or state.get("Running") or state.get("Status") == "created":
        return None
    try:
        with explained("hand out the log"):
            lines = await engine.container(container).log(stdout=True)
    except (Absent, Busy):  # somebody else removed it, or is at it
        lines = []
    told = endings.last_exit("".join(lines).splitlines())
    return told or unrecorded(int(state.get("ExitCode", 0)), state.get("OOMKilled") is True)


async def output_of(engine: Engine, container: str, lines: int, since: datetime | None) -> str:
    """The last lines on standard error, where the daemon sends what the entrypoint prints."""
    try:
        with explained("hand out the log"):
            after = "0" if since is None else f"{since.timestamp():.6f}"
            parts = await engine.container(container).log(stderr=True, tail=lines + _OWN_LINES, since=after)
    except Absent:
        return ""
    return "".join("".join(parts).splitlines(keepends=True)[-lines:])


def unrecorded(code: int, oom: bool) -> Exit:
    """The end of a daemon that could not write anything down any more."""
    if oom:
        return Exit(None, "SIGKILL", oom=True)
    if code > 128 and code - 128 in set(signal.Signals):
        return Exit(None, signal.Signals(code - 128).name)
    return Exit(code)


def _seconds(system_time: str) -> int:
    """The engine's own clock, which need not be ours."""
    return int(datetime.fromisoformat(system_time).timestamp())
