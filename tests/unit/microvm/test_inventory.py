# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What may go of the folder that machines are made from, and what damage is noticed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from casulo.model.pruning import Pruned
from casulo.runtimes.microvm import inventory, sums
from casulo.runtimes.microvm.folder import Parts
from casulo.runtimes.microvm.inventory import Current
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.store import Store
from casulo.runtimes.microvm.templates import Recipe, Template, Templates
from casulo.runtimes.microvm.vmm import Hardware

LONG_AGO = time.time() - 3600


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.prepare()
    return made


@pytest.fixture
def parts(store: Store) -> Parts:
    kernel = store.kernels / "6.1" / "vmlinuz"
    initramfs, image = store.initramfses / "initramfs-0a", store.images / "aa.ext4"
    for path in (kernel, initramfs, image):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        os.utime(path, (LONG_AGO, LONG_AGO))
    os.utime(kernel.parent, (LONG_AGO, LONG_AGO))
    return Parts(kernel, initramfs, image, Hardware(1, 1 << 28, 1 << 30), "qemu 7")


def frozen(store: Store, name: str, parts: Parts) -> Path:
    folder = store.templates / name
    folder.mkdir()
    for file in sums.FILES:
        (folder / file).write_bytes(os.urandom(100_000))
    (folder / "about.json").write_text(json.dumps({"parts": json.loads(parts.encode())}))
    sums.note(folder)
    os.utime(folder / "about.json", (LONG_AGO, LONG_AGO))
    return folder


def pruned(store: Store, parts: Parts, *, unused: bool = False, dry: bool = False) -> Pruned:
    current = Current(parts.kernel, parts.initramfs, parts.fingerprint)
    return inventory.prune(store, current, unused=unused, dry=dry)


def reasons(told: Pruned) -> dict[str, str]:
    return {found.id: found.reason for found in told.removed}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": "qemu 6"}, "of another monitor or processor"),
        ({"kernel": Path("/kernels/5.10/vmlinuz")}, "of another kernel"),
        ({"initramfs": Path("/initramfs-0b")}, "of another version of the daemon"),
        ({"image_disk": Path("/nowhere.ext4")}, "its image is gone"),
    ],
)
def test_what_is_outdated_goes_and_what_is_not_stays(store: Store, parts: Parts, change, reason) -> None:
    frozen(store, "good", parts)
    old = frozen(store, "old", replace(parts, **change))
    assert reasons(pruned(store, parts, dry=True)) == {"old": reason} and old.exists()
    assert reasons(pruned(store, parts)) == {"old": reason} and not old.exists()
    assert (store.templates / "good").exists() and parts.image_disk.exists()
    told = pruned(store, parts, unused=True)
    assert set(reasons(told)) == {"good", "aa.ext4"} and all(found.bytes for found in told.removed)
    assert parts.kernel.exists() and parts.initramfs.exists()


def test_what_a_machine_or_a_snapshot_of_any_server_needs_stays(
    store: Store, parts: Parts, tmp_path: Path
) -> None:
    frozen(store, "good", parts)
    for server, folder, note in (
        ("one", "microvms", "machine.json"),
        ("two", "microvm-snapshots", "about.json"),
    ):
        place = tmp_path / server / folder / f"of-{server}"
        place.mkdir(parents=True)
        body = json.loads(parts.encode())
        (place / note).write_text(json.dumps(body if note == "machine.json" else {"parts": body}))
        store.register(tmp_path / server)
    told = pruned(store, parts, unused=True)
    assert not told.removed
    assert [(found.reason, list(found.used_by)) for found in told.kept] == [("in use", ["of-one", "of-two"])]
    (tmp_path / "one").rename(tmp_path / "gone")
    assert [list(found.used_by) for found in pruned(store, parts, unused=True).kept] == [["of-two"]]
    outdated = replace(parts, fingerprint="qemu 8")  # now: whatever happens, nobody's disk is taken away
    assert not pruned(store, outdated, unused=True).removed


def test_what_was_used_a_moment_ago_stays(store: Store, parts: Parts) -> None:
    folder = frozen(store, "good", replace(parts, fingerprint="other"))
    os.utime(folder / "about.json")
    told = pruned(store, parts, unused=True)
    assert not told.removed and [found.reason for found in told.kept] == ["used a moment ago"]


def test_nonsense_in_the_folder_does_no_harm(store: Store, parts: Parts) -> None:
    frozen(store, "good", parts)
    for name, content in (("empty", ""), ("list", "[]"), ("half", '{"parts": {"kernel"')):
        (store.templates / name).mkdir()
        note = store.templates / name / "about.json"
        note.write_text(content)
        os.utime(note, (LONG_AGO, LONG_AGO))
    assert reasons(pruned(store, parts)) == dict.fromkeys(("empty", "list", "half"), "unreadable")


def test_what_killed_servers_were_making_is_swept_and_what_others_make_is_not(store: Store) -> None:
    halves = [store.templates / ".key.1", store.images / ".aa.ext4.1", store.blanks / ".5.ext4.1"]
    for half in halves:
        (half / "root").mkdir(parents=True)
    store.initramfses.mkdir()
    (store.initramfses / "initramfs-0a.4194304").write_text("half")
    with store.locked("key"):
        store.sweep()
        assert [half.exists() for half in halves] == [True, False, False]
    store.sweep()
    assert not halves[0].exists() and not list(store.initramfses.iterdir())


def _flipped(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(50_000)
        byte = file.read(1)
        file.seek(50_000)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("name", sums.FILES)
def test_every_kind_of_damage_is_noticed(store: Store, parts: Parts, name: str) -> None:
    harms = {
        "flipped": _flipped,
        "cut": lambda path: os.truncate(path, 60_000),
        "longer": lambda path: os.truncate(path, 200_000),
        "empty": lambda path: os.truncate(path, 0),
        "gone": Path.unlink,
        "zeros": lambda path: path.write_bytes(bytes(100_000)),
    }
    for title, harm in harms.items():
        folder = frozen(store, title, parts)
        before = sums.stamp(folder)
        assert sums.damaged(folder) == "" and before is not None
        harm(folder / name)
        assert sums.stamp(folder) != before
        assert sums.damaged(folder) in (name, sums.NOTE)


def test_a_note_that_is_half_written_is_damage(store: Store, parts: Parts) -> None:
    folder = frozen(store, "half", parts)
    (folder / sums.NOTE).write_text('{"state": "0')
    assert sums.damaged(folder) == sums.NOTE


def test_holes_do_not_count(tmp_path: Path) -> None:
    """A file system may turn written zeros into holes and holes into zeros."""
    for name, fill in (("one", False), ("two", True)):
        (tmp_path / name).mkdir()
        for file in sums.FILES:
            path = tmp_path / name / file
            path.write_bytes(bytes(1 << 20) if fill else b"")
            with path.open("r+b") as opened:
                opened.truncate(1 << 20)
                opened.seek(300_000)
                opened.write(b"content")
        sums.note(tmp_path / name)
    assert (tmp_path / "one" / sums.NOTE).read_text() == (tmp_path / "two" / sums.NOTE).read_text()


class Builder(Templates):
    """Freezes nothing, and counts how often it was asked to."""

    built = 0

    async def _build(self, template: Template) -> None:
        Builder.built += 1
        await asyncio.sleep(0.05)
        partial = frozen(self._store, f".{template.key}.1", template.recipe.parts)
        partial.rename(template.path)


async def test_several_servers_that_want_one_template_build_it_once(store: Store, parts: Parts) -> None:
    recipe = Recipe(parts)
    Builder.built = 0
    servers = [Builder(store, Machines(None, None, None, 0), 1) for _ in range(3)]
    found = await asyncio.gather(*(server.get(recipe) for server in servers for _ in range(4)))
    assert Builder.built == 1 and {each.key for each in found} == {recipe.key}
    _flipped(found[0].path / "memory")
    await asyncio.gather(*(server.get(recipe) for server in servers))
    assert Builder.built == 2
    (found[0].path / "state").unlink()
    await servers[0].get(recipe)
    assert Builder.built == 3
    before = sums.damaged
    sums.damaged = lambda folder: pytest.fail("what did not change is not read again")
    try:
        await servers[0].get(recipe)
    finally:
        sums.damaged = before


async def test_a_memory_is_loaded_once_and_again_when_it_changed(store: Store, parts: Parts) -> None:
    templates = Builder(store, Machines(None, None, None, 0), 1)
    template = await templates.get(Recipe(parts))
    loaded = await asyncio.gather(*(templates.memory(template) for _ in range(5)))
    assert len(set(loaded)) == 1
    with template.path.joinpath("memory").open("rb") as file:
        assert os.pread(loaded[0], 100_000, 0) == file.read()
    shutil.rmtree(template.path)  # by another server, which makes it anew
    await templates.get(Recipe(parts))
    assert os.pread(await templates.memory(template), 100, 0) != os.pread(loaded[0], 100, 0)
    templates.forget(template.key)
    with pytest.raises(OSError):
        os.fstat(loaded[0])
    templates.close()
