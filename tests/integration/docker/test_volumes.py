# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes on the Docker runtime: the engine's named ones, and directories of the machine."""

from __future__ import annotations

import pytest

from casulo.client import Volume
from casulo.model.errors import CasuloError, Code
from support.dockered import Place


async def _said(place: Place, script: str, *volumes: Volume) -> str:
    async with await place.start(volumes=volumes) as box:
        return (await box.commands.run(script)).check().stdout


async def _refused(place: Place, code: str, *volumes: Volume) -> None:
    before = place.engine.ours()
    with pytest.raises(CasuloError) as caught:
        await place.start(volumes=volumes)
    assert caught.value.code == code, caught.value
    assert place.engine.ours() == before


async def test_host_paths_are_shared_and_judged(place: Place) -> None:
    folder = place.allowed / "shared"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "marker").write_text("from the host\n")
    (folder / "out").symlink_to("/etc")
    told = await _said(
        place,
        "cat /mnt/a/part/marker /mnt/b/marker; echo new > /mnt/a/new; echo x > /mnt/b/no || true",
        Volume.host(str(folder), "/mnt/a"),
        Volume.host(str(folder), "/mnt/b", sub_path="part", read_only=True),
    )
    assert told == "from the host\nfrom the host\n"
    assert (folder / "new").read_text() == "new\n" and not (folder / "part" / "no").exists()
    await _refused(place, Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host("/etc", "/mnt/x"))
    await _refused(place, Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host(str(folder / "out"), "/mnt/x"))
    await _refused(place, Code.VOLUME_INVALID_SUB_PATH, Volume.host(str(folder), "/mnt/x", sub_path="out"))


async def test_a_mount_point_behind_a_link_of_the_image_is_compared_where_it_really_is(place: Place) -> None:
    folder = place.allowed / "linked"
    folder.mkdir()
    assert await _said(place, "echo hi > /mnt/in/file", Volume.host(str(folder), "/mnt/in")) == ""
    assert (folder / "file").read_text() == "hi\n"


async def test_named_volumes_are_the_engines(place: Place) -> None:
    place.engine.docker("volume", "create", "existing")
    kept, temporary = Volume.named("kept", "/mnt/v"), Volume.named("temp", "/mnt/t", delete_with_sandbox=True)
    existing = Volume.named("existing", "/mnt/e", delete_with_sandbox=True)
    assert await _said(place, "echo 1 > /mnt/v/file; echo 2 > /mnt/t/file", kept, temporary, existing) == ""
    volumes = place.engine.ours()["volumes"]
    assert "kept" in volumes and "temp" not in volumes and "existing" in volumes
    part = Volume.named("kept", "/mnt/v", sub_path="deep/part")
    assert await _said(place, "ls /mnt/v; echo deep > /mnt/v/inner", part) == ""
    assert await _said(place, "cat /mnt/v/file /mnt/v/deep/part/inner", kept) == "1\ndeep\n"
    place.engine.docker("volume", "rm", "kept", "existing")


async def test_a_volume_that_others_use_outlives_its_maker(place: Place) -> None:
    volume = Volume.named("common", "/mnt/v", delete_with_sandbox=True)
    async with await place.start(volumes=[volume]) as first:
        part = Volume.named("common", "/mnt/v", sub_path="a", delete_with_sandbox=True)
        async with await place.start(volumes=[part]) as second:
            await first.kill()
            assert "common" in place.engine.ours()["volumes"]
            assert (await second.commands.run(["touch", "/mnt/v/still"])).ok
    assert "common" not in place.engine.ours()["volumes"]


async def test_what_cannot_be_is_refused_and_leaves_nothing(place: Place) -> None:
    absent = Volume.named("absent", "/mnt/v", create=False)
    await _refused(place, Code.VOLUME_CLAIM_NOT_FOUND, Volume.named("made-first", "/mnt/a"), absent)
    program = next(name for name in place.engine.ours()["volumes"] if "-execd-" in name)
    await _refused(place, Code.VOLUME_INVALID_CLAIM_NAME, Volume.named(program, "/mnt/v"))
    before = place.engine.ours()
    with pytest.raises(CasuloError):
        await place.start(volumes=[Volume.named("of-no-start", "/mnt/v")], entrypoint=["/no/such"])
    assert place.engine.ours() == before
