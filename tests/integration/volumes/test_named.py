# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Named volumes of real sandboxes: shared, kept, deleted when that was asked for."""

from __future__ import annotations

import asyncio
import os

import pytest

from casulo.client import (
    CasuloError,
    InvalidRequest,
    Volume,
)
from casulo.model.errors import Code
from support.volumes import Place


async def test_named_volume_outlives_sandboxes(place: Place) -> None:
    volume = Volume.named("kept", "/data")
    await place.said("echo hello > /data/file; chown 1000 /data/file", volume)
    assert await place.said("cat /data/file; stat -c %u /data/file", volume) == "hello\n1000\n"
    assert (place.named("kept") / "data" / "file").stat().st_uid == 1000


async def test_named_volume_has_to_be_there_if_asked(place: Place) -> None:
    before = place.kept()
    await place.refused(Code.VOLUME_CLAIM_NOT_FOUND, Volume.named("absent", "/data", create=False))
    await place.refused(
        Code.VOLUME_UNSUPPORTED, Volume("/data", {"pvc": {"claimName": "c", "storage": "1Gi"}})
    )
    assert place.kept() == before


async def test_a_failed_create_leaves_no_volume(place: Place) -> None:
    before = place.kept()
    file = place.allowed / "a-file"
    file.touch()
    # The mount path leads through something that is no directory, which only the start finds out.
    broken = Volume.host(str(file), "/etc/passwd/below")
    with pytest.raises(CasuloError):
        await place.start(Volume.named("never", "/data"), broken)
    assert place.kept() == before


async def test_delete_with_sandbox(place: Place) -> None:
    passing = Volume.named("passing", "/data", delete_with_sandbox=True)
    first = await place.start(passing)
    second = await place.start(passing)
    await first.commands.run("echo shared > /data/x")
    await first.kill()
    assert (await second.commands.run("cat /data/x")).stdout == "shared\n"
    await second.kill()
    assert "passing" not in place.kept()


async def test_delete_with_sandbox_spares_what_was_there(place: Place) -> None:
    await place.said("true", Volume.named("older", "/data"))
    await place.said("echo x > /data/x", Volume.named("older", "/data", delete_with_sandbox=True))
    assert (place.named("older") / "data" / "x").exists()
    async with await place.start(Volume.named("wanted", "/data", delete_with_sandbox=True)):
        await place.said("true", Volume.named("wanted", "/data"))  # this one counts on it
    assert "wanted" in place.kept()


async def test_concurrent_use(place: Place) -> None:
    volume = Volume.named("many", "/data")
    boxes = await asyncio.gather(*(place.start(volume) for _ in range(4)))
    await asyncio.gather(*(b.commands.run(f"echo {i} > /data/{i}") for i, b in enumerate(boxes)))
    told = {(await box.commands.run("cat /data/*")).stdout for box in boxes}
    assert told == {"0\n1\n2\n3\n"}
    await asyncio.gather(*(box.kill() for box in boxes))
    assert not list((place.named("many") / "users").iterdir())


async def test_sub_paths(place: Place) -> None:
    whole = Volume.named("tree", "/data")
    script = (
        "mkdir -p /data/datasets/train; echo sub > /data/datasets/train/marker; ln -s datasets /data/current"
    )
    await place.said(script, whole)
    part = Volume.named("tree", "/in", sub_path="datasets/train")
    assert await place.said("ls /in; cat /in/marker; echo w > /in/w", part) == "marker\nsub\n"
    assert await place.said("ls /in", Volume.named("tree", "/in", sub_path="current/train")) == "marker\nw\n"
    missing = Volume.named("tree", "/in", sub_path="not/there")
    assert await place.said("stat -c %u:%a /in; touch /in/x", missing) == "0:755\n"
    assert (place.named("tree") / "data" / "not" / "there" / "x").exists()


async def test_b086_what_a_sandbox_plants_does_not_let_the_next_one_escape(place: Place) -> None:
    script = (
        "cd /data; ln -s / absolute; ln -s ../../../.. up; ln -s /proc/self/root magic; "
        "ln -s nowhere/x dangling; ln -s loop loop; mkdir a; ln -s ../.. a/b; touch file"
    )
    await place.said(script, Volume.named("planted", "/data"))
    os.mkfifo(place.named("planted") / "data" / "pipe")
    before = sorted(os.listdir(place.named("planted").parent))
    for sub in ("absolute", "absolute/etc", "up", "up/x/y", "magic", "dangling", "loop", "a/b/c", "file/x"):
        await place.refused(Code.VOLUME_INVALID_SUB_PATH, Volume.named("planted", "/in", sub_path=sub))
    await place.refused(Code.VOLUME_INVALID_HOST_PATH, Volume.named("planted", "/in", sub_path="pipe"))
    assert await place.said("cat /in", Volume.named("planted", "/in", sub_path="file")) == ""
    assert sorted(os.listdir(place.named("planted").parent)) == before


async def test_a_volume_in_a_volume(place: Place) -> None:
    inner = Volume.named("inner", "/data/in/side")
    outer = Volume.named("outer", "/data")
    assert await place.said("echo i > /data/in/side/i; echo o > /data/o; ls /data", inner, outer) == "in\no\n"
    assert os.listdir(place.named("inner") / "data") == ["i"]
    assert os.listdir(place.named("outer") / "data" / "in" / "side") == []


async def test_paused_and_snapshotted_sandboxes(place: Place) -> None:
    """A snapshot holds the sandbox's own files; what is in its volumes stays there."""
    volume = Volume.named("apart", "/data")
    async with await place.start(volume) as box:
        await box.commands.run("echo in-volume > /data/x; echo own > /own")
        await box.pause()
        await box.resume()
        assert (await box.commands.run("cat /data/x")).stdout == "in-volume\n"
        snapshot = await box.snapshot()
    try:
        async with await place.start(snapshot=snapshot.id) as box:
            assert (await box.commands.run("cat /own; ls /data")).stdout == "own\n"
    finally:
        await place.client.snapshots.delete(snapshot.id)


async def test_isolated_sessions_see_volumes(place: Place) -> None:
    options = {"extensions": {"bootstrap.execd.isolation": "enable"}}
    volume = Volume.named("sessions", "/data")
    try:
        box = await place.start(volume, **options)
    except InvalidRequest as error:
        assert error.code == Code.NOT_SUPPORTED
        return  # this engine has no isolated sessions
    async with box:
        await box.commands.run("echo there > /data/x; chown 1000 /data/x")
        async with await box.isolated.create("/data") as session:
            assert (await session.run("cat /data/x; stat -c %u /data/x")).stdout == "there\n1000\n"
