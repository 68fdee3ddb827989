# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A lifecycle service over a real store and a runtime in memory, and a way to crash it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from casulo.control.lifecycle import Lifecycle
from casulo.control.settings import ControlSettings, RenewIntentSettings, SandboxSettings
from casulo.model.draft import Draft
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.runtimes.registry import Registry
from casulo.store.store import Store
from support.memory_runtime import MemoryRuntime, World


@dataclass
class Clock:
    """The wall clock, and by how much somebody has set it wrong."""

    offset: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset


@dataclass
class Service:
    """One server's worth of control, and what tests need to reach around it."""

    lifecycle: Lifecycle
    store: Store
    runtime: MemoryRuntime
    clock: Clock

    @property
    def world(self) -> World:
        return self.runtime.world

    async def create(self, **draft: Any) -> Sandbox:
        return await self.lifecycle.create(Draft(image="host", **draft))

    async def in_state(self, sandbox_id: str, state: State, within: float = 5.0) -> Sandbox:
        """The sandbox once it is in `state`."""
        found: list[Sandbox] = []

        async def reached() -> bool:
            found[:] = [await self.lifecycle.get(sandbox_id)]
            return found[0].status.state is state

        await until(reached, within)
        return found[0]

    async def is_gone(self, sandbox_id: str, within: float = 5.0) -> None:
        """Wait until neither row nor trace is left."""

        async def gone() -> bool:
            return await self.store.get(sandbox_id) is None and sandbox_id not in self.world.boxes

        await until(gone, within)


@dataclass
class Lab:
    """Makes services over one database and one world."""

    path: Path
    world: World = field(default_factory=World)
    clock: Clock = field(default_factory=Clock)
    services: list[Service] = field(default_factory=list)
    settings: ControlSettings = field(
        default_factory=lambda: ControlSettings(
            sandbox=SandboxSettings(stop_grace_seconds=0.1, start_timeout_seconds=5),
            renew_intent=RenewIntentSettings(enabled=True, min_interval_seconds=0.2),
        )
    )

    async def service(self, runtime: MemoryRuntime | None = None, *, opened: bool = True) -> Service:
        runtime = runtime or MemoryRuntime(self.world)
        store = await Store.open(f"sqlite:///{self.path}")
        lifecycle = Lifecycle(store, Registry([runtime]), self.settings, now=self.clock)
        if opened:
            await lifecycle.open()
        made = Service(lifecycle, store, runtime, self.clock)
        self.services.append(made)
        return made

    async def crash(self, service: Service) -> None:
        """As kill -9: nothing more happens, and nothing is said or stored."""
        self.services.remove(service)
        mine = asyncio.current_task()
        tasks = [t for t in asyncio.all_tasks() if t is not mine and _is_of_service(t)]
        before, kept = dict(self.world.boxes), dict(self.world.snapshots)
        await service.store.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.world.boxes.clear()
        self.world.boxes.update(before)
        self.world.snapshots.clear()
        self.world.snapshots.update(kept)


def _is_of_service(task: asyncio.Task[Any]) -> bool:
    return task.get_name().startswith(
        ("start", "stop", "pause", "resume", "exit", "expiry", "remove", "snapshot", "vault")
    )


async def until(holds: Callable[[], Any], within: float = 5.0) -> None:
    """Wait for an asynchronous condition."""
    deadline = time.monotonic() + within
    while not await holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged; crashes log much, and rendering it would take longer than the tests."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path / "casulo.db")
    yield made
    for service in made.services:
        await service.lifecycle.close()
        await service.store.close()


@pytest.fixture
async def service(lab: Lab) -> Service:
    return await lab.service()
