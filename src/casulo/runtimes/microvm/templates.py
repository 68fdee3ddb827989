# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates: machines that were booted, warmed up and frozen, to be restored any number of times.

    <store>/templates/<key>/about.json   what it was made from, and when
                           /memory       the machine's memory, sparse
                           /state        processor and devices
                           /disk         its writable disk
                           /sums.json    by which damage to these is noticed

The key is a digest of everything that a frozen machine depends on: kernel, daemon, image, hardware,
monitor, warm-up. So another version of any of them is another template, and none is ever wrong.
Nothing of a sandbox is in it: names, addresses, tokens and random numbers come after the restore.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import structlog

from casulo.model.errors import CasuloError, Code, RuntimeFailure
from casulo.runtimes.microvm import disks, sums
from casulo.runtimes.microvm.folder import Folder, Parts
from casulo.runtimes.microvm.link import Link
from casulo.runtimes.microvm.machines import Machines, Origin
from casulo.runtimes.microvm.store import Store
from casulo.runtimes.microvm.vmm import MEMORY

BUILDING = "build-"
_WARM_SECONDS = 60.0
_SYNC_SECONDS = 30.0
_MOST_OPEN = 4
_FORMAT = 2
"""What a server of another version may not find in a template has another number, and so another key."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Recipe:
    """What a template is made from. Each `warm` is a command; with `strict` it has to succeed."""

    parts: Parts
    warm: tuple[tuple[str, ...], ...] = ()
    strict: bool = False

    @property
    def key(self) -> str:
        """The template's name."""
        said = json.dumps([_FORMAT, self.parts.encode(), self.warm])
        return hashlib.sha256(said.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Template:
    """A finished one."""

    path: Path
    recipe: Recipe

    @property
    def key(self) -> str:
        """Its name."""
        return self.path.name

    @property
    def about(self) -> Path:
        """What it was made from; touched whenever it is used."""
        return self.path / "about.json"

    @property
    def disk(self) -> Path:
        """The writable disk as it was when the machine was frozen."""
        return self.path / "disk"


class Templates:
    """Builds templates and hands them out. `patience` is how long a boot may take."""

    def __init__(self, store: Store, machines: Machines, patience: float) -> None:
        self._store = store
        self._machines = machines
        self._patience = patience
        self._building: dict[str, asyncio.Lock] = {}
        self._memories: OrderedDict[tuple[str, sums.Stamp | None], int] = OrderedDict()
        self._loading = asyncio.Lock()
        self._whole: dict[str, sums.Stamp] = {}

    async def get(self, recipe: Recipe) -> Template:
        """The template, built if it is not there or not whole. Several who want the same wait for one."""
        template = Template(self._store.templates / recipe.key, recipe)
        async with self._building.setdefault(recipe.key, asyncio.Lock()):
            if await self.damage(template):
                await self._build_alone(template)
        os.utime(template.about)
        return template

    async def damage(self, template: Template) -> str:
        """What is wrong with its files; empty when nothing is. They are read again only when they changed."""
        stamp = sums.stamp(template.path)
        if stamp is None:
            return "a file is missing"
        if self._whole.get(template.key) != stamp:
            found = await asyncio.to_thread(sums.damaged, template.path)
            if found:
                return f"{found} is not what was written"
            self._whole[template.key] = stamp
        return ""

    def _trust(self, template: Template) -> None:
        stamp = sums.stamp(template.path)
        if stamp is not None:
            self._whole[template.key] = stamp

    async def _build_alone(self, template: Template) -> None:
        lock = self._store.locked(template.key)
        await asyncio.to_thread(lock.__enter__)
        try:
            if (damage := await self.damage(template)) and template.path.exists():
                log.warning("microvm.template_broken", key=template.key, damage=damage)
                await asyncio.to_thread(shutil.rmtree, template.path)
            if damage:
                await self._build(template)
                self._trust(template)
        finally:
            lock.__exit__(None, None, None)

    async def _build(self, template: Template) -> None:
        begun = time.monotonic()
        parts = template.recipe.parts
        blank = await asyncio.to_thread(self._store.blank, parts.hardware.disk_bytes)
        name = BUILDING + secrets.token_hex(4)
        memory = memory_file(parts.hardware.memory_bytes) if self._machines.vmm.takes_memory else None
        partial = template.path.with_name(f".{template.key}.{os.getpid()}")
        try:
            partial.mkdir()
            folder = await self._machines.start(name, parts, Origin(blank, memory, private=False))
            await self._warm(folder, template.recipe)
            await self._freeze(folder, partial)
            await asyncio.to_thread(_keep, template.recipe, folder, memory, partial)
            partial.rename(template.path)
        finally:
            if memory is not None:
                os.close(memory)
            await asyncio.shield(self._machines.remove(name))
            shutil.rmtree(partial, ignore_errors=True)
        log.info("microvm.template_built", key=template.key, seconds=round(time.monotonic() - begun, 2))

    async def _warm(self, folder: Folder, recipe: Recipe) -> None:
        link = (await self._machines.lines(folder.name)).link
        try:
            _check_waiting(await link.event(self._patience))
        except CasuloError as error:
            raise _not_booted(folder, error) from error
        for command in recipe.warm:
            await _run(link, command, recipe.strict)
        await link.ask("sync", _SYNC_SECONDS)

    async def _freeze(self, folder: Folder, target: Path) -> None:
        await self._machines.vmm.halt(folder.sockets)
        await self._machines.vmm.save(folder.sockets, target)
        await self._machines.kill(folder.name)

    async def memory(self, template: Template) -> int:
        """A descriptor of the template's memory that nobody can write to; stays this object's."""
        key = template.key, sums.stamp(template.path)  # another server may have made it anew
        async with self._loading:  # children of a fork all come at once, and shall share one
            if key not in self._memories:
                self._memories[key] = await asyncio.to_thread(_sealed, template.path / MEMORY)
        self._memories.move_to_end(key)
        if len(self._memories) > _MOST_OPEN:
            os.close(self._memories.popitem(last=False)[1])
        return self._memories[key]

    def forget(self, key: str) -> None:
        """Nothing more will be restored from it."""
        self._whole.pop(key, None)
        for kept in [kept for kept in self._memories if kept[0] == key]:
            os.close(self._memories.pop(kept))

    async def restore(self, template: Template, name: str) -> Folder:
        """A new machine that stands still where the template was frozen."""
        if not self._machines.vmm.takes_memory:
            origin = Origin(template.disk, frozen=template.path)
            return await self._machines.start(name, template.recipe.parts, origin)
        memory = os.dup(await self.memory(template))
        try:
            origin = Origin(template.disk, memory, private=True, frozen=template.path)
            return await self._machines.start(name, template.recipe.parts, origin)
        finally:
            os.close(memory)

    def close(self) -> None:
        """Let the memory go; machines keep what they have of it."""
        while self._memories:
            os.close(self._memories.popitem()[1])


def memory_file(size: int) -> int:
    """Memory for a machine, shared with whoever has the descriptor."""
    descriptor = os.memfd_create("casulo-machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, size)
    return descriptor


def _sealed(path: Path) -> int:
    """The file's content in memory that cannot be changed any more: many monitors share it, and none
    may write what another one's guest would then run."""
    descriptor = memory_file(path.stat().st_size)
    disks.copy(path, Path(f"/proc/self/fd/{descriptor}"))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def _keep(recipe: Recipe, folder: Folder, memory: int | None, target: Path) -> None:
    if memory is not None:
        disks.copy(Path(f"/proc/self/fd/{memory}"), target / MEMORY)
    disks.copy(folder.disk, target / "disk")
    about = {"parts": json.loads(recipe.parts.encode()), "warm": recipe.warm, "made": time.time()}
    (target / "about.json").write_text(json.dumps(about))
    sums.note(target)


async def _run(link: Link, command: tuple[str, ...], strict: bool) -> None:
    answer = await link.ask("run", _WARM_SECONDS + 5, command=command, timeout_seconds=_WARM_SECONDS)
    if strict and answer.get("code"):
        said = f"ended with {answer['code']}: {answer.get('output', '')}"
        raise RuntimeFailure(f"the warm-up command {' '.join(command)!r} {said}")


def _check_waiting(event: bytes) -> None:
    body = json.loads(event)
    if body.get("event") != "waiting":
        raise RuntimeFailure(str(body.get("message") or "its daemon could not bring it up"))


def _not_booted(folder: Folder, error: CasuloError) -> RuntimeFailure:
    said = [
        path.read_text(errors="replace") for path in (folder.monitor_log, folder.console_log) if path.exists()
    ]
    last = " | ".join("".join(said).splitlines()[-4:])
    return RuntimeFailure(
        f"the virtual machine did not boot: {error.message}",
        code=Code.SANDBOX_START_FAILED,
        hint=f"it said: {last}" if last else "",
    )
