# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots with memory: a running machine is copied, and each sandbox made from it goes on from there.

    <data>/microvm-snapshots/<id>/memory, state, disk   as in a template
                                 /about.json            what it can be restored with

The source stands still only while its state and disk are copied. Afterwards a second monitor, which
runs nothing, takes the copy apart into the form that many machines can share.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from pathlib import Path

from casulo.model.errors import Code, Conflict
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Handle, Spec
from casulo.model.snapshot import snapshot_not_found
from casulo.runtimes.microvm import disks
from casulo.runtimes.microvm.folder import Folder, Parts
from casulo.runtimes.microvm.machines import Machines, Origin
from casulo.runtimes.microvm.templates import BUILDING, Recipe, Template, memory_file
from casulo.runtimes.microvm.vmm import MEMORY, Hardware

_UNFINISHED = ".part"
_WHOLE = "whole"
_SYNC_SECONDS = 60.0


class MicrovmSnapshots:
    """The ability to take them, and what restoring needs of them."""

    def __init__(self, root: Path, machines: Machines) -> None:
        self._root = root
        self._machines = machines

    def prepare(self) -> None:
        """Make the folder."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Copy the machine, let it go on, and prepare the copy."""
        partial = self._root / f"{snapshot_id}{_UNFINISHED}"
        partial.mkdir(mode=0o700)
        try:
            folder = self._machines.folders.of(sandbox_id)
            await self._copy(folder, partial)
            if self._machines.vmm.takes_memory:
                await self._unfold(folder.parts(), partial)
            about = {"parts": json.loads(folder.parts().encode()), "entrypoint": spec.entrypoint}
            (partial / "about.json").write_text(json.dumps(about))
            partial.rename(self._root / snapshot_id)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, True)

    async def _copy(self, folder: Folder, target: Path) -> None:
        vmm = self._machines.vmm
        await vmm.halt(folder.sockets)
        try:
            saved = target / _WHOLE if vmm.takes_memory else target
            saved.mkdir(exist_ok=True)
            await vmm.save(folder.sockets, saved, whole=True)
            await asyncio.to_thread(disks.copy, folder.disk, target / "disk")
        finally:
            await asyncio.shield(vmm.go(folder.sockets))

    async def _unfold(self, parts: Parts, target: Path) -> None:
        """From one stream to memory that can be shared and a small state."""
        name = BUILDING + secrets.token_hex(4)
        memory = memory_file(parts.hardware.memory_bytes)
        try:
            origin = Origin(target / "disk", memory, private=False, frozen=target / _WHOLE, whole=True)
            folder = await self._machines.start(name, parts, origin)
            await self._machines.vmm.save(folder.sockets, target, whole=False)
            await self._machines.kill(name)
            await asyncio.to_thread(disks.copy, Path(f"/proc/self/fd/{memory}"), target / MEMORY)
            await asyncio.to_thread(shutil.rmtree, target / _WHOLE)
        finally:
            os.close(memory)
            await asyncio.shield(self._machines.remove(name))

    def template(self, snapshot_id: str, spec: Spec, hardware: Hardware) -> Template:
        """What machines are restored from; Conflict where the request wants something else of it."""
        path = self._root / snapshot_id
        try:
            about = json.loads((path / "about.json").read_text())
        except FileNotFoundError:
            raise snapshot_not_found(snapshot_id) from None
        parts = Parts.decode(json.dumps(about["parts"]))
        if spec.resource_limits and parts.hardware != hardware:
            raise _other("resources", "ask for those of the sandbox that the snapshot was taken of")
        if spec.entrypoint not in ((), DEFAULT_ENTRYPOINT, tuple(about["entrypoint"])):
            raise _other("an entrypoint", "leave it out: the snapshot's own one goes on running")
        if parts.fingerprint != self._machines.vmm.fingerprint:
            raise _other("a monitor or processor", "restore it where it was taken")
        return Template(path, Recipe(parts))

    async def remove(self, snapshot_id: str) -> None:
        """Delete the copy; machines made from it keep what they have of it."""
        for path in (self._root / snapshot_id, self._root / f"{snapshot_id}{_UNFINISHED}"):
            if path.exists():
                await asyncio.to_thread(shutil.rmtree, path)

    async def list(self) -> set[str]:
        """Ids with a folder, whole or not."""
        return {path.name.removesuffix(_UNFINISHED) for path in self._root.iterdir()}


def _other(what: str, remedy: str) -> Conflict:
    return Conflict(
        f"the snapshot holds a running machine, which cannot be given {what} that differs",
        code=Code.SNAPSHOT_INVALID_RESTORE_CONFIG,
        hint=remedy,
    )
