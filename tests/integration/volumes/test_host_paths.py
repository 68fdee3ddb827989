# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Paths of the host in real sandboxes: shared, owned alike on both sides, and nothing leads out of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from casulo.client import (
    CasuloError,
    InvalidRequest,
    RuntimeFailure,
    Volume,
)
from casulo.model.errors import Code
from support.server import Server
from support.volumes import Place


async def test_host_path_is_shared_and_owners_are_the_same_on_both_sides(place: Place) -> None:
    folder = place.allowed / "shared"
    folder.mkdir()
    (folder / "marker.txt").write_text("from the host")
    os.chown(folder / "marker.txt", 1000, 1001)
    script = (
        "cat /mnt/in/marker.txt; stat -c ' %u:%g' /mnt/in/marker.txt; stat -c %u:%g /mnt/in;"
        "echo more >> /mnt/in/marker.txt; echo new > /mnt/in/new;"
        "touch /mnt/in/user; chown 1234:5678 /mnt/in/user"
    )
    told = await place.said(script, Volume.host(str(folder), "/mnt/in"))
    assert told.split("\n")[:2] == ["from the host 1000:1001", "0:0"]
    assert (folder / "marker.txt").read_text() == "from the hostmore\n"
    owners = {
        name: (st.st_uid, st.st_gid)
        for name in ("marker.txt", "new", "user")
        if (st := (folder / name).stat())
    }
    assert owners == {"marker.txt": (1000, 1001), "new": (0, 0), "user": (1234, 5678)}


async def test_read_only_is(place: Place) -> None:
    folder = place.allowed / "read-only"
    folder.mkdir()
    (folder / "marker").write_text("kept")
    for volume in (
        Volume.host(str(folder), "/in", read_only=True),
        Volume.named("ro", "/in", read_only=True),
    ):
        async with await place.start(volume) as box:
            for script in ("touch /in/x", "mkdir /in/y", "rm /in/marker", "mount -o remount,rw /in"):
                assert (await box.commands.run(script)).exit_code != 0, script
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("marker", "kept")]


async def test_no_devices_and_no_setuid_through_a_volume(place: Place) -> None:
    folder = place.allowed / "hostile"
    folder.mkdir()
    os.mknod(folder / "disk", 0o60666, os.makedev(7, 0))
    os.mknod(folder / "null", 0o20666, os.makedev(1, 3))
    shutil.copy("/usr/bin/id", folder / "id")
    os.chmod(folder / "id", 0o4755)
    async with await place.start(Volume.host(str(folder), "/in")) as box:
        assert (await box.commands.run("head -c1 /in/disk || head -c1 /in/null")).exit_code != 0
        assert (await box.commands.run("mknod /in/made b 7 0")).exit_code != 0
        assert (await box.commands.run("setpriv --reuid 1000 /in/id -u")).check().stdout == "1000\n"


async def test_a_file_and_missing_directories(place: Place) -> None:
    file = place.allowed / "settings.json"
    file.write_text("{}")
    deep = place.allowed / "not" / "yet"
    script = "cat /etc/app/settings.json; echo made > /data/out; stat -c %u:%a /data"
    told = await place.said(
        script, Volume.host(str(file), "/etc/app/settings.json"), Volume.host(str(deep), "/data")
    )
    assert told == "{}0:755\n"
    assert (deep / "out").read_text() == "made\n"


@pytest.mark.parametrize("path", ["/", "/etc", "/proc", "/run", "/var/run/docker.sock", "/root"])
async def test_b086_everything_else_is_refused(place: Place, path: str) -> None:
    await place.refused(Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host(path, "/in"))


async def test_b086_links_that_lead_out_are_refused(place: Place) -> None:
    (place.allowed / "out").symlink_to(place.outside)
    (place.allowed / "way").mkdir()
    (place.allowed / "way" / "out").symlink_to("../../outside")
    (place.outside / "secret").write_text("secret")
    for path in ("out", "out/secret", "way/out"):
        error = await place.refused(
            Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host(str(place.allowed / path), "/in")
        )
        assert isinstance(error, InvalidRequest)
    for sub in ("out", "way/out", "out/secret", "out/new"):
        await place.refused(
            Code.VOLUME_INVALID_SUB_PATH, Volume.host(str(place.allowed), "/in", sub_path=sub)
        )
    await place.refused(Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host(str(place.outside), "/in"))
    await place.refused(Code.VOLUME_HOST_PATH_NOT_ALLOWED, Volume.host(f"{place.allowed}-not", "/in"))
    assert os.listdir(place.outside) == ["secret"]


async def test_sockets_are_refused(place: Place) -> None:
    path = place.allowed / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        await place.refused(Code.VOLUME_INVALID_HOST_PATH, Volume.host(str(path), "/in"))


async def test_b086_a_swap_does_not_escape(place: Place) -> None:
    """The directory is a link to the outside every other moment; no sandbox may ever see the outside."""
    (place.outside / "secret").write_text("secret")
    (place.allowed / "trap").symlink_to(place.outside)
    (place.allowed / "swapped").mkdir()
    stopping = threading.Event()
    swapping = threading.Thread(target=_swap, args=(place.allowed, stopping))
    swapping.start()
    seen = []
    try:
        for number in range(16):
            way = {"path": str(place.allowed / "swapped")} if number % 2 else {"path": str(place.allowed)}
            volume = Volume.host(way["path"], "/in", sub_path="" if number % 2 else "swapped")
            try:
                seen.append(await place.said("ls /in", volume))
            except CasuloError as error:
                assert error.code in (Code.VOLUME_HOST_PATH_NOT_ALLOWED, Code.VOLUME_INVALID_SUB_PATH), error
    finally:
        stopping.set()
        swapping.join()
    assert "secret" not in "".join(seen)
    assert os.listdir(place.outside) == ["secret"]


def _swap(folder: Path, stopping: threading.Event) -> None:
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    here, there = (os.fsencode(folder / name) for name in ("swapped", "trap"))
    while not stopping.is_set():
        assert exchange(-100, here, -100, there, ctypes.c_uint(2)) == 0, os.strerror(ctypes.get_errno())
        time.sleep(0.0005)


async def test_mounts_below_a_host_path_are_seen_and_as_read_only_as_it(place: Place) -> None:
    folder = place.allowed / "with-mount"
    (folder / "below").mkdir(parents=True)
    other = place.outside / "other"
    other.mkdir()
    (other / "file").write_text("below")
    assert os.system(f"mount --bind {other} {folder / 'below'}") == 0
    try:
        volume = Volume.host(str(folder), "/in", read_only=True)
        async with await place.start(volume) as box:
            assert (await box.commands.run("cat /in/below/file")).stdout == "below"
            assert (await box.commands.run("touch /in/below/new")).exit_code != 0
    finally:
        os.system(f"umount {folder / 'below'}")


async def test_nothing_of_the_mounts_is_seen_on_the_host(place: Place) -> None:
    async with await place.start(Volume.named("quiet", "/data"), Volume.host(str(place.allowed), "/in")):
        mounts = Path(f"/proc/{place.server.process.pid}/mounts").read_text()  # type: ignore[union-attr]
        assert "/run/casulo" not in "\n".join(line for line in mounts.splitlines() if "/volumes" in line)


async def test_a_mount_path_through_links_stays_inside(place: Place) -> None:
    before = os.listdir(place.outside)
    async with await place.start() as box:
        (await box.commands.run(f"ln -s {place.outside} /way; ln -s ../../../..{place.outside} /up")).check()
        snapshot = await box.snapshot()
    try:
        for way in ("/way/made", "/up/made"):
            # crun refuses a link that leads nowhere inside, runc makes what it names, inside.
            with contextlib.suppress(RuntimeFailure):
                volume = Volume.named("inside", way)
                assert await place.said(f"touch {way}/x; ls {way}", volume, snapshot=snapshot) == "x\n"
    finally:
        await place.client.snapshots.delete(snapshot.id)
    assert os.listdir(place.outside) == before


def test_command_line(served: tuple[Server, Path, Path]) -> None:
    server, allowed, _ = served
    (allowed / "for-cli").write_text("to be read")
    volumes = ["--volume", "cli:/data", "--volume", f"{allowed}/for-cli:/in:ro"]
    environment = {
        **os.environ,
        "OPEN_SANDBOX_DOMAIN": server.domain,
        "OPEN_SANDBOX_API_KEY": server.api_key,
    }
    script = "cp /in /data/copy; cat /data/copy; echo no > /in"
    command = [sys.executable, "-m", "casulo.cli", "run", *volumes, "--", "sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0, done.stdout) == (True, "to be read"), done.stderr
    assert (server.data_dir / "volumes/cli/data/copy").read_text() == "to be read"
