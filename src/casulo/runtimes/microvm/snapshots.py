# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots with memory: a running machine is copied, and each sandbox made from it goes on from there.

    <data>/microvm-snapshots/<id>/memory, state, disk   as in a template
                                 /about.json            what it can be restored with

The source stands still only while its state, its disk and what it changed in its memory are copied.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

from casulo.model.errors import CasuloError, Code, Conflict
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Handle, Spec
from casulo.model.snapshot import Change, snapshot_not_found
from casulo.runtimes.microvm import diskdiff, disks, sums
from casulo.runtimes.microvm.folder import Folder, Parts
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.templates import Recipe, Template, Templates
from casulo.runtimes.microvm.vmm import MEMORY, Hardware

_UNFINISHED = ".part"
_REST_SECONDS = 5.0
_SYNC_SECONDS = 10.0
_COMPARED_AT_ONCE = 2
log = structlog.get_logger(__name__)


class MicrovmSnapshots:
    """The ability to take them, and what restoring needs of them."""

    def __init__(self, root: Path, machines: Machines, templates: Templates) -> None:
        self._root = root
        self._machines = machines
        self._templates = templates
        self._comparing = asyncio.Semaphore(_COMPARED_AT_ONCE)

    def prepare(self) -> None:
        """Make the folder, and note the sums that a server before did not come to."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._root.iterdir():
            if path.suffix != _UNFINISHED and not sums.is_noted(path):
                self._machines.besides(_note(path))

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Copy the machine, let it go on, and prepare the copy."""
        partial = self._root / f"{snapshot_id}{_UNFINISHED}"
        partial.mkdir(mode=0o700)
        try:
            folder = self._machines.folders.of(sandbox_id)
            await self._copy(folder, partial)
            about = {
                "parts": json.loads(folder.parts().encode()),
                "entrypoint": spec.entrypoint,
                "environment": json.loads(folder.environment.read_text()),
            }
            (partial / "about.json").write_text(json.dumps(about))
            partial.rename(self._root / snapshot_id)
            self._machines.besides(_note(self._root / snapshot_id))
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, True)

    async def _copy(self, folder: Folder, target: Path) -> None:
        vmm = self._machines.vmm
        await self._synced(folder)
        with ExitStack() as stack:
            await vmm.halt(folder.sockets)
            try:
                memory = await self._machines.save(folder, target)
                if memory is not None:
                    stack.callback(memory.close)
                await asyncio.to_thread(disks.copy, folder.disk, target / "disk")
            finally:
                await asyncio.shield(vmm.go(folder.sockets))
            if memory is not None:
                await asyncio.to_thread(memory.write, target / MEMORY)

    async def _synced(self, folder: Folder) -> None:
        """Have on the disk what was written. With its memory a snapshot is whole without it, and that is
        only for who compares disks; so a guest that does not do it is no reason to fail."""
        try:
            await (await self._machines.lines(folder.name)).link.ask("sync", _SYNC_SECONDS)
        except CasuloError as error:
            log.info("microvm.not_synced", sandbox=folder.name, error=error.message)

    async def outdated(self, snapshot_id: str) -> str:
        """Why no machine can be restored from it."""
        try:
            parts = Parts.decode(json.dumps(self._about(snapshot_id)["parts"]))
        except (OSError, ValueError, KeyError, TypeError, CasuloError):
            return "its files are gone"
        if parts.fingerprint != self._machines.vmm.fingerprint:
            return "of another monitor or processor"
        return "" if parts.image_disk.exists() else "its image is gone"

    def _about(self, snapshot_id: str) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads((self._root / snapshot_id / "about.json").read_text())
        except FileNotFoundError:
            raise snapshot_not_found(snapshot_id) from None
        return about

    async def template(self, snapshot_id: str, spec: Spec, hardware: Hardware) -> Template:
        """What machines are restored from; Conflict where the request wants something else of it."""
        template = self._fitting(snapshot_id, spec, hardware)
        noted = await asyncio.to_thread(sums.is_noted, template.path)
        if noted and (damage := await self._templates.damage(template)):
            raise Conflict(
                f"the snapshot {snapshot_id} is damaged: {damage}",
                code=Code.SNAPSHOT_INVALID_STATE,
                hint="delete it, and take another one",
            )
        return template

    def _fitting(self, snapshot_id: str, spec: Spec, hardware: Hardware) -> Template:
        path, about = self._root / snapshot_id, self._about(snapshot_id)
        parts = Parts.decode(json.dumps(about["parts"]))
        if spec.resource_limits and parts.hardware != hardware:
            raise _other("resources", "ask for those of the sandbox that the snapshot was taken of")
        if spec.entrypoint not in ((), DEFAULT_ENTRYPOINT, tuple(about["entrypoint"])):
            raise _other("an entrypoint", "leave it out: the snapshot's own one goes on running")
        if parts.fingerprint != self._machines.vmm.fingerprint:
            raise _other("a monitor or processor", "restore it where it was taken")
        return Template(path, Recipe(parts))

    def environment(self, snapshot_id: str, folder: Folder) -> dict[str, str]:
        """What a machine made from it has of variables before those of its request."""
        base: dict[str, str] = self._about(snapshot_id)["environment"]
        folder.environment.write_text(json.dumps(base))
        return base

    async def diff(self, old: str, new: str) -> Sequence[Change]:
        """By what is on their disks."""
        parts = [Parts.decode(json.dumps(self._about(each)["parts"])) for each in (old, new)]
        if parts[0].image_disk != parts[1].image_disk:
            raise Conflict(
                "the snapshots have different images below them",
                code=Code.SNAPSHOT_INVALID_STATE,
                hint="compare snapshots that descend from one sandbox",
            )
        places = [self._root / each / "disk" for each in (old, new)]
        async with self._comparing:
            return await asyncio.to_thread(diskdiff.compare, parts[0].image_disk, *places)

    async def remove(self, snapshot_id: str) -> None:
        """Delete the copy; machines made from it keep what they have of it."""
        self._templates.forget(snapshot_id)
        for path in (self._root / snapshot_id, self._root / f"{snapshot_id}{_UNFINISHED}"):
            if path.exists():
                await asyncio.to_thread(shutil.rmtree, path)

    async def list(self) -> set[str]:
        """Ids with a folder, whole or not."""
        return {path.name.removesuffix(_UNFINISHED) for path in self._root.iterdir()}


async def _note(path: Path) -> None:
    """Later: whoever forks a sandbox wants its children now, and deletes this as soon as it has them."""
    await asyncio.sleep(_REST_SECONDS)
    try:
        await asyncio.to_thread(sums.note, path)
    except FileNotFoundError:
        log.info("microvm.snapshot_gone", snapshot=path.name)


def _other(what: str, remedy: str) -> Conflict:
    return Conflict(
        f"the snapshot holds a running machine, which cannot be given {what} that differs",
        code=Code.SNAPSHOT_INVALID_RESTORE_CONFIG,
        hint=remedy,
    )
