# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is in the folder that machines are made from, who needs it, and what may go. Blocking.

A template needs the files that it was made from. So does a machine, which is started from them again after
a pause, and a snapshot. Servers that share the folder are known by their data directories.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from casulo.model.pruning import Found, Pruned
from casulo.runtimes.microvm.folder import Parts
from casulo.runtimes.microvm.store import Store, remove

RECENT_SECONDS = 60.0
"""Somebody may be about to make a machine of what was used as recently."""

OLD_SECONDS = 7 * 24 * 3600.0
"""What nobody used for so long goes by itself."""

_USERS = ("microvms", "microvm-snapshots")
_NOTES = ("machine.json", "about.json")


@dataclass(frozen=True)
class Current:
    """What a server would make a template from now."""

    kernel: Path
    initramfs: Path
    fingerprint: str

    def differs(self, parts: Parts) -> str:
        """How a template is outdated; empty when it is not."""
        if parts.fingerprint != self.fingerprint:
            return "of another monitor or processor"
        if parts.kernel != self.kernel:
            return "of another kernel"
        if parts.initramfs != self.initramfs:
            return "of another version of the daemon"
        return "" if parts.image_disk.exists() else "its image is gone"


@dataclass(frozen=True)
class Frozen:
    """A template in the folder; `parts` None when its note cannot be read."""

    path: Path
    parts: Parts | None
    age: float


@dataclass(frozen=True)
class File:
    """Something that templates and machines are made from. `age` counts from its last use."""

    kind: str
    path: Path
    age: float


def prune(
    store: Store, current: Current, *, unused: bool, dry: bool, least_age: float = RECENT_SECONDS
) -> Pruned:
    """Remove outdated templates, with `unused` all without a machine, and the files that nobody needs."""
    users, found = dict(_users(store.users())), list(_templates(store))
    templates = plan_templates(found, users, current, unused, least_age)
    gone = {one.id for one in templates.removed}
    needed = [*users.values(), *(one.parts for one in found if one.parts and one.path.name not in gone)]
    told = _sized(store, templates + plan_files(list(_files(store)), needed, current, least_age))
    if not dry:
        for one in told.removed:
            with store.locked(one.id):
                remove(_place(store, one))
    return told


def plan_templates(
    found: Sequence[Frozen], users: Mapping[str, Parts], current: Current, unused: bool, least_age: float
) -> Pruned:
    """Pure."""
    removed, kept = [], []
    for one in found:
        using = sorted(name for name, parts in users.items() if parts == one.parts)
        stale = "unreadable" if one.parts is None else current.differs(one.parts)
        told = Found("machine", one.path.name, stale or "unused", _image_of(one), used_by=using)
        if using:
            kept.append(replace(told, reason="in use"))
        elif one.age < least_age:
            kept.append(replace(told, reason="used a moment ago"))
        elif stale or unused:
            removed.append(told)
    return Pruned(tuple(removed), tuple(kept))


def plan_files(found: Sequence[File], needed: Iterable[Parts], current: Current, least_age: float) -> Pruned:
    """Pure. Files that are needed are no news."""
    wanted = {current.kernel.parent, current.initramfs}
    for parts in needed:
        wanted |= {parts.kernel.parent, parts.initramfs, parts.image_disk}
    gone = [one for one in found if one.path not in wanted and one.age >= least_age]
    return Pruned(tuple(Found(one.kind, one.path.name, "nothing needs it") for one in gone))


def _image_of(one: Frozen) -> str:
    if one.parts is None:
        return ""
    hardware = one.parts.hardware
    size = f"{hardware.memory_bytes >> 20}Mi, {hardware.vcpus} cpu, {hardware.disk_bytes >> 20}Mi disk"
    return f"{one.parts.image_disk.stem[:12]} ({size})"


def _place(store: Store, found: Found) -> Path:
    folders = {
        "machine": store.templates,
        "disk": store.images,
        "kernel": store.kernels,
        "initramfs": store.initramfses,
    }
    return folders[found.kind] / found.id


def _sized(store: Store, told: Pruned) -> Pruned:
    return Pruned(
        *(
            tuple(replace(one, bytes=_size(_place(store, one))) for one in part)
            for part in (told.removed, told.kept)
        )
    )


def _size(path: Path) -> int:
    """What it takes on the disk."""
    inside = path.rglob("*") if path.is_dir() else [path]
    return sum(each.lstat().st_blocks * 512 for each in inside)


def _templates(store: Store) -> Iterator[Frozen]:
    for path in sorted(store.templates.glob("[!.]*")):
        note = path / "about.json"
        yield Frozen(path, _parts(note), _age(note if note.exists() else path))


def _files(store: Store) -> Iterator[File]:
    folders = {"disk": store.images, "kernel": store.kernels, "initramfs": store.initramfses}
    for kind, folder in folders.items():
        for path in sorted(folder.glob("[!.]*")):
            yield File(kind, path, _age(path))


def _users(servers: Iterable[Path]) -> Iterator[tuple[str, Parts]]:
    """Machines and snapshots, by name."""
    for server in servers:
        for folder in _USERS:
            for path in (server / folder).glob("*"):
                for note in _NOTES:
                    parts = _parts(path / note)
                    if parts is not None:
                        yield path.name, parts


def _parts(note: Path) -> Parts | None:
    try:
        body = json.loads(note.read_text())
        return Parts.decode(json.dumps(body.get("parts", body)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
