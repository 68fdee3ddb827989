# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots of the fake runtime: copies of the only files that are a sandbox's own, its home."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from casulo.model.sandbox import Handle, Spec
from casulo.model.snapshot import snapshot_not_found
from casulo.runtimes import processtree
from casulo.runtimes.treecopy import TreeCopy

T = TypeVar("T")
_UNFINISHED = ".part"


class FakeSnapshots:
    """Folders below `root`, each a home. `homes` are the sandboxes' folders, by id."""

    def __init__(self, root: Path, home_of: Callable[[str], Path]) -> None:
        self._root = root
        self._home_of = home_of

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Stop the processes, copy, and let them go on."""
        work = functools.partial(self._take, snapshot_id, self._home_of(sandbox_id), int(handle.data["pid"]))
        await to_its_end(work)

    def _take(self, snapshot_id: str, home: Path, pid: int) -> None:
        unfinished = self._root / f"{snapshot_id}{_UNFINISHED}"
        processtree.stop(pid)
        try:
            TreeCopy(home, unfinished).run()
            unfinished.rename(self._root / snapshot_id)
        finally:
            processtree.resume(pid)
            shutil.rmtree(unfinished, ignore_errors=True)

    async def remove(self, snapshot_id: str) -> None:
        """Delete the copy."""
        for path in (self._root / snapshot_id, self._root / f"{snapshot_id}{_UNFINISHED}"):
            if path.exists():
                await asyncio.to_thread(shutil.rmtree, path)

    async def list(self) -> set[str]:
        """Ids with a folder, whole or not."""
        return {path.name.removesuffix(_UNFINISHED) for path in self._root.iterdir()}

    def prepare(self) -> None:
        """Make the folder."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def restore(self, snapshot_id: str, home: Path) -> None:
        """Fill the home of a new sandbox."""
        kept = self._root / snapshot_id
        if not kept.exists():
            raise snapshot_not_found(snapshot_id)
        TreeCopy(kept, home).run()


async def to_its_end(work: Callable[[], T]) -> T:
    """Run in a thread. A thread cannot be stopped half-way, so cancellation waits for its end."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
