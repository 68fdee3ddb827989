# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pulls that are killed, cancelled, too slow or disturbed: never half an image, never a process left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from casulo.images import jobs
from casulo.images.settings import ImagesSettings
from casulo.images.store import Image, ImageStore
from casulo.model.errors import CasuloError, TimedOut
from support.images import ImageParts, LayoutWriter, archive, folder, member

from .conftest import MINE, unpacked

BASE = archive(folder("etc"), member("etc/name", b"base"))


async def test_a_killed_pull_leaves_nothing_and_the_next_one_succeeds(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    layout.add(
        "big",
        ImageParts(
            [archive(*(member(f"d{n % 50}/f{n}", b"x" * 3000) for n in range(40_000)))], compress=False
        ),
    )
    for delay in (0.05, 0.3, 0.6):
        pulling = asyncio.create_task(store.pull(layout.reference("big")))
        while not (found := workers()):
            await asyncio.sleep(0.005)
        await asyncio.sleep(delay)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(CasuloError, match="worker process ended"):
            await pulling
        assert await store.list() == [] and unpacked(tmp_path / "images") == []
        await store.open()  # as the next server does
        assert os.listdir(tmp_path / "images/tmp") == []
    image = await store.pull(layout.reference("big"))
    assert sum(len(files) for _, _, files in os.walk(image.layers[0])) == 40_000


def workers() -> list[int]:
    """Worker processes that this process started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            words = (place / "cmdline").read_bytes().split(b"\0")
            if parent == str(os.getpid()) and b"casulo.images.worker" in words:
                found.append(int(place.name))
    return found


async def test_a_cancelled_caller_ends_the_work_unless_another_waits(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    layout.add(
        "big", ImageParts([archive(*(member(f"f{n}", b"x" * 900) for n in range(8000)))], compress=False)
    )
    first, second = (asyncio.create_task(store.pull(layout.reference("big"))) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert isinstance(await second, Image)
    await store.remove(layout.reference("big"))
    third = asyncio.create_task(store.pull(layout.reference("big")))
    await asyncio.sleep(0.1)
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert await store.list() == [] and unpacked(tmp_path / "images") == []


async def test_a_pull_that_takes_too_long_is_ended(tmp_path: Path, layout: LayoutWriter) -> None:
    layout.add("big", ImageParts([archive(*(member(f"f{n}", b"x") for n in range(30_000)))], compress=False))
    hurried = ImageStore(tmp_path / "images", ImagesSettings(pull_timeout_seconds=0.3), MINE)
    await hurried.open()
    with pytest.raises(TimedOut, match=r"not here after 0\.3 s"):
        await hurried.pull(layout.reference("big"))
    assert os.listdir(tmp_path / "images/tmp") == []


async def test_a_worker_that_dies_is_reported(
    store: ImageStore, layout: LayoutWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.add("one", ImageParts([BASE]))
    monkeypatch.setattr(jobs, "COMMAND", (sys.executable, "-c", "import sys; sys.exit('no such luck')"))
    with pytest.raises(CasuloError, match="worker process ended: no such luck"):
        await store.pull(layout.reference("one"))


async def test_a_prune_does_not_take_layers_from_a_running_pull(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    small, big = BASE, archive(*(member(f"f{n}", b"x" * 500) for n in range(8000)))
    layout.add("both", ImageParts([small, big], compress=False))
    pulling = asyncio.create_task(store.pull(layout.reference("both")))
    while not pulling.done():
        await store.prune()
        await asyncio.sleep(0.02)
    image = await pulling
    assert all(layer.is_dir() for layer in image.layers)
