# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A runtime whose sandboxes are entries of a dictionary, so that tests can choose what happens when.

`World` outlives the runtime, as a host outlives a server: hand the same world to a second runtime
and it finds what the first left. It keeps the protocol of `casulo.runtimes.base` in full.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casulo.model.credentials import Credentials
from casulo.model.errors import Code, RuntimeFailure, Unsupported
from casulo.model.sandbox import Exit, Handle, Isolation, Spec
from casulo.model.snapshot import snapshot_not_found
from casulo.runtimes.base import Capabilities, Deaf, Egress, ExitListener, Reality, Snapshots


@dataclass
class Box:
    """One sandbox of the world: half made until it has a handle."""

    handle: Handle | None = None
    alive: bool = True
    frozen: bool = False
    exit: Exit | None = None


@dataclass
class World:
    """What is on the host, and a count of what was done to it."""

    boxes: dict[str, Box] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)
    destroyed: Counter[str] = field(default_factory=Counter)
    snapshots: dict[str, bool] = field(default_factory=dict)
    """By id, whether it is complete."""


class MemoryRuntime:
    """Set an event or an error to slow down or spoil the next calls."""

    def __init__(
        self,
        world: World,
        name: str = "memory",
        *,
        can_pause: bool = True,
        can_snapshot: bool = True,
        can_park: bool = False,
    ) -> None:
        self.name = name
        self.world = world
        self.pause: MemoryPause | None = MemoryPause(self) if can_pause else None
        self.snapshots: Snapshots | None = MemorySnapshots(self) if can_snapshot else None
        self.may_snapshot = _open_gate()
        self.snapshot_error: Exception | None = None
        self.remove_error: Exception | None = None
        self.egress: Egress | None = None
        self.may_provide = _open_gate()
        self.provided: list[tuple[str, Credentials | None]] = []
        self.provide_error: Exception | None = None
        self.may_create = _open_gate()
        self.parking: MemoryRuntime | None = self if can_park else None
        self.deaf: set[str] = set()
        self.park_error: Exception | None = None
        self.may_destroy = _open_gate()
        self.may_pause = _open_gate()
        self.create_error: Exception | None = None
        self.cancel_error: Exception | None = None
        self.destroy_error: Exception | None = None
        self.pause_error: Exception | None = None
        self.inspect_error: Exception | None = None
        self.open_error: Exception | None = None
        self.ends_at_once: Exit | None = None
        self.creating = 0
        self.most_creating = 0
        self.features = frozenset({"pause"})
        self.specs: dict[str, Spec] = {}
        self.foretold: dict[str, Mapping[str, Any]] = {}
        self.isolations = frozenset({Isolation.AUTO, Isolation.CONTAINER})
        self.missing: dict[str, str] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(isolations=self.isolations, features=self.features, missing=self.missing)

    def foretell(self, vaults: Mapping[str, Mapping[str, Any]]) -> None:
        self.foretold = dict(vaults)

    async def open(self, on_exit: ExitListener) -> None:
        if self.open_error:
            raise self.open_error
        self._on_exit = on_exit

    async def close(self) -> None:
        """Nothing of the world belongs to the server."""

    def check(self, spec: Spec) -> None:
        if spec.image == "missing":
            raise Unsupported("no such image", code=Code.IMAGE_UNSUPPORTED)

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        self.provided.append((sandbox_id, credentials))
        if self.provide_error:
            raise self.provide_error
        if spec.snapshot_id and not self.world.snapshots.get(spec.snapshot_id):
            raise snapshot_not_found(spec.snapshot_id)
        await self.may_provide.wait()

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        assert sandbox_id not in self.world.boxes, "created twice without being destroyed"
        self.specs[sandbox_id] = spec
        self.world.boxes[sandbox_id] = Box()
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            await self.may_create.wait()
            if self.create_error:
                raise self.create_error
        except asyncio.CancelledError:
            del self.world.boxes[sandbox_id]
            if self.cancel_error:
                raise self.cancel_error from None
            raise
        except BaseException:
            del self.world.boxes[sandbox_id]
            raise
        finally:
            self.creating -= 1
        return self._made(sandbox_id)

    def _made(self, sandbox_id: str) -> Handle:
        box = self.world.boxes[sandbox_id]
        box.handle = Handle("127.0.0.1", 44772, f"token-{sandbox_id}", {"serial": len(self.world.created)})
        self.world.created.append(sandbox_id)
        if self.ends_at_once:
            self.end(sandbox_id, self.ends_at_once)
        return box.handle

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        await self.may_destroy.wait()
        if self.destroy_error:
            raise self.destroy_error
        self.world.destroyed[sandbox_id] += 1
        box = self.world.boxes.pop(sandbox_id, None)
        return box.exit if box else None

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        if self.inspect_error:
            raise self.inspect_error
        box = self.world.boxes.get(sandbox_id)
        if box is None or not box.alive:
            return Reality(alive=False, exit=box.exit if box else None)
        return Reality(alive=True, frozen=box.frozen)

    async def list(self) -> set[str]:
        return set(self.world.boxes)

    def can(self, spec: Spec) -> bool:
        return True

    async def park(self, sandbox_id: str, spec: Spec) -> None:
        assert sandbox_id not in self.world.boxes
        if self.park_error:
            raise self.park_error
        self.world.boxes[sandbox_id] = Box()
        self.world.parked.append(sandbox_id)

    async def adopt(self, sandbox_id: str, spec: Spec) -> Handle:
        assert self.world.boxes[sandbox_id].handle is None, "handed out twice"
        await self.may_create.wait()
        if sandbox_id in self.deaf:
            raise Deaf("it does not answer")
        if self.create_error:
            raise self.create_error
        return self._made(sandbox_id)

    def ready(self, sandbox_id: str) -> bool:
        box = self.world.boxes.get(sandbox_id)
        return box is not None and box.alive

    def end(self, sandbox_id: str, exit_: Exit | None) -> None:
        """The sandbox's processes end by themselves."""
        box = self.world.boxes[sandbox_id]
        box.alive, box.exit = False, exit_
        self._on_exit(sandbox_id, exit_)


class MemoryPause:
    """Freezing is a flag."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._runtime = runtime

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        await self._set(sandbox_id, True)

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        await self._set(sandbox_id, False)

    async def _set(self, sandbox_id: str, frozen: bool) -> None:
        await self._runtime.may_pause.wait()
        if self._runtime.pause_error:
            raise self._runtime.pause_error
        box = self._runtime.world.boxes.get(sandbox_id)
        if box is None or not box.alive:
            raise RuntimeFailure("it is not running")
        box.frozen = frozen


class MemorySnapshots:
    """Taking one is remembering its id."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._runtime = runtime

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        known = self._runtime.world.snapshots
        box = self._runtime.world.boxes[sandbox_id]
        known[snapshot_id] = False
        try:
            await self._runtime.may_snapshot.wait()
            assert not box.frozen, "a paused sandbox would be woken"
            if self._runtime.snapshot_error:
                raise self._runtime.snapshot_error
        except BaseException:
            del known[snapshot_id]
            raise
        known[snapshot_id] = True

    async def remove(self, snapshot_id: str) -> None:
        if self._runtime.remove_error:
            raise self._runtime.remove_error
        self._runtime.world.snapshots.pop(snapshot_id, None)

    async def list(self) -> set[str]:
        return set(self._runtime.world.snapshots)


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
