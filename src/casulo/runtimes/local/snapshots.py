# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots of local sandboxes: what one wrote becomes a layer below those that are made from it.

The sandbox stands still while its upper directory is copied, so that the copy is of one moment and
nothing changes under the copier's feet; the copy is written to the disk after it goes on. Mounts
(/proc, /dev, /tmp in memory, volumes) are no part of the upper directory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import structlog

from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import Code, Conflict, RuntimeFailure
from casulo.model.memory import with_memory
from casulo.model.sandbox import Handle, Spec
from casulo.model.snapshot import Change
from casulo.runtimes.base import MOST_CHANGES
from casulo.runtimes.local import checkpoints, layerdiff, rootless
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.host import Host
from casulo.runtimes.local.pauses import LocalPause
from casulo.runtimes.local.roots import Roots, holder_of
from casulo.runtimes.local.snapshotshelf import Kept, SnapshotShelf
from casulo.runtimes.treecopy import TreeCopy

T = TypeVar("T")
MOST_LAYERS = 200
"""Of one root: the kernel takes the names of all of them in one page."""

_COMPARED_AT_ONCE = 2
_log = structlog.get_logger(__name__)


class LocalSnapshots:
    """The ability that the local runtime offers."""

    def __init__(self, host: Host, roots: Roots, shelf: SnapshotShelf, pauses: LocalPause) -> None:
        self._host = host
        self._pauses = pauses
        self._roots = roots
        self._shelf = shelf
        self._comparing = asyncio.Semaphore(_COMPARED_AT_ONCE)

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Freeze, copy, thaw, and then keep."""
        folder = Folder(self._host.sandboxes / sandbox_id)
        wrapper = rootless.WRAPPER if self._host.rootless else ()
        copy = TreeCopy(folder.upper, self._shelf.draft(snapshot_id), wrapper)
        try:
            below = await self._below(snapshot_id, sandbox_id, spec, folder)
            if with_memory(spec.extensions):
                await self._take_with_memory(snapshot_id, folder, handle, copy)
            else:
                await _stoppable(lambda: self._copy(sandbox_id, copy), copy.stop)
            await _stoppable(lambda: self._shelf.keep(snapshot_id, below), lambda: None)
        except BaseException:
            await asyncio.shield(self.remove(snapshot_id))
            raise

    async def remove(self, snapshot_id: str) -> None:
        """Remove record, image hold, and the layers that nobody else has."""
        await asyncio.to_thread(self._shelf.remove, snapshot_id)
        await self._roots.let_go(holder_of(snapshot_id))

    async def list(self) -> set[str]:
        """Ids with a record or a layer on the way."""
        return await asyncio.to_thread(self._shelf.snapshots)

    async def diff(self, old: str, new: str) -> Sequence[Change]:
        """By what is in their layers."""
        async with self._comparing:
            return await asyncio.to_thread(self._diff, old, new)

    def _diff(self, old: str, new: str) -> Sequence[Change]:
        before, after = self._shelf.kept(old), self._shelf.kept(new)
        if (before.image, before.ids) != (after.image, after.ids):
            raise Conflict(
                "the snapshots have different images below them",
                code=Code.SNAPSHOT_INVALID_STATE,
                hint="compare snapshots that descend from one sandbox",
            )
        pairs = zip(before.layers, after.layers, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        layers = [self._shelf.places(each) for each in (before, after)]
        found = layerdiff.compare(layers[0][:same], layers[0][same:], layers[1][same:])
        try:
            return tuple(itertools.islice(found, MOST_CHANGES))
        except OSError as error:  # one was deleted meanwhile, or has paths longer than can be named
            raise RuntimeFailure(f"the snapshots cannot be compared: {error.strerror}") from error

    def thaw_forgotten(self) -> None:
        """After a restart: let those go on that stood still for a server that is gone. Blocking."""
        for sandbox_id in self._shelf.frozen():
            if checkpoints.is_unsettled(Folder(self._host.sandboxes / sandbox_id)):
                continue  # whoever inspects it lets it go on
            group = self._host.group(sandbox_id)
            try:
                if group.exists():
                    group.freeze(False)
            except RuntimeFailure as error:  # one sandbox must not keep the server from starting
                _log.error("snapshot.thaw_failed", sandbox=sandbox_id, error=str(error))
                continue
            _log.warning("snapshot.thawed_after_crash", sandbox=sandbox_id)
            self._shelf.thawed(sandbox_id)

    async def _below(self, snapshot_id: str, sandbox_id: str, spec: Spec, folder: Folder) -> Kept:
        """What the new layer lies on, kept from now on."""
        held = await asyncio.to_thread(self._shelf.held, sandbox_id)
        layers = await asyncio.to_thread(folder.layers)
        if len(layers) >= MOST_LAYERS:
            raise RuntimeFailure(
                f"sandbox {sandbox_id} has {len(layers)} layers, which is the most",
                code=Code.SNAPSHOT_CREATE_FAILED,
                hint="make an image of its files with `osb image import`, and begin from that",
            )
        image = HOST_IMAGE
        if spec.image != HOST_IMAGE:
            image = await self._roots.share(sandbox_id, holder_of(snapshot_id))
        return Kept(image, self._roots.ids.name, held.layers if held else ())

    def was_taking(self, sandbox_id: str) -> bool:
        """Whether a snapshot that was cut short is why the sandbox stands still."""
        return sandbox_id in self._shelf.frozen()

    def goes_on(self, sandbox_id: str) -> None:
        """It does not any more."""
        self._shelf.thawed(sandbox_id)

    async def _take_with_memory(
        self, snapshot_id: str, folder: Folder, handle: Handle, copy: TreeCopy
    ) -> None:
        """The sandbox goes to disk and comes back; what it left there meanwhile is the snapshot."""
        sandbox_id, memory = folder.path.name, self._shelf.memory(snapshot_id)
        self._shelf.mark_frozen(sandbox_id)
        try:
            await self._pauses.put_down(folder, handle)
        except BaseException:
            self._shelf.thawed(sandbox_id)
            raise
        try:
            await _stoppable(lambda: checkpoints.copy_to(folder, memory), lambda: None)
            await _stoppable(copy.run, copy.stop)
        finally:
            await asyncio.shield(self._pauses.pick_up(folder, handle))
            self._shelf.thawed(sandbox_id)

    def _copy(self, sandbox_id: str, copy: TreeCopy) -> None:
        with self._standing_still(sandbox_id):
            copy.run()

    @contextmanager
    def _standing_still(self, sandbox_id: str) -> Iterator[None]:
        group = self._host.group(sandbox_id)
        self._shelf.mark_frozen(sandbox_id)
        try:
            group.freeze(True)
            yield
        finally:
            group.freeze(False)
            self._shelf.thawed(sandbox_id)  # a thaw that failed leaves the mark to the next start


async def _stoppable(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run in a thread; a caller who is cancelled makes it stop, and waits until it has."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        raise
