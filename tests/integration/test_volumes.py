# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes of real sandboxes: what is shared, who owns it, and that nothing leads out of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casulo.client import (
    AsyncClient,
    AsyncSandbox,
    CasuloError,
    Connection,
    InvalidRequest,
    RuntimeFailure,
    Volume,
)
from casulo.model.errors import Code
from support.machine import cannot_run
from support.server import Server


@dataclass
class Place:
    """A server that allows `allowed`, and a directory beside it that it does not."""

    server: Server
    client: AsyncClient
    allowed: Path
    outside: Path

    async def start(self, *volumes: Volume, **more: Any) -> AsyncSandbox:
        return await AsyncSandbox.create(volumes=volumes, client=self.client, **more)

    async def said(self, script: str, *volumes: Volume, **more: Any) -> str:
        """What a shell in a sandbox with these volumes prints; the sandbox is gone afterwards."""
        async with await self.start(*volumes, **more) as box:
            return (await box.commands.run(script)).check().stdout

    async def refused(self, code: str, *volumes: Volume) -> CasuloError:
        with pytest.raises(CasuloError) as caught:
            await self.start(*volumes)
        assert caught.value.code == code, caught.value
        return caught.value

    def named(self, name: str) -> Path:
        """Where the server keeps a named volume."""
        return self.server.data_dir / "volumes" / name

    def kept(self) -> set[str]:
        """Everything that there is of named volumes, half made ones too."""
        return set(os.listdir(self.server.data_dir / "volumes"))


@pytest.fixture(scope="module", params=["crun", "runc"])
def served(
    request: pytest.FixtureRequest, new_module_server: Callable[..., Server], tmp_path_factory: Any
) -> Iterator[tuple[Server, Path, Path]]:
    if shutil.which(request.param) is None:
        cannot_run(f"{request.param} is not installed")
    top = tmp_path_factory.mktemp("host")
    (top / "allowed").mkdir()
    (top / "outside").mkdir()
    # Allowed through a link: both sides are compared by where they really are.
    (top / "link").symlink_to("allowed")
    server = new_module_server(
        "local",
        extra=f'[storage]\nallowed_host_paths = ["{top / "link"}"]\n',
        local=f'oci_runtime = "{request.param}"\n',
    )
    yield server, top / "allowed", top / "outside"


@pytest.fixture
async def place(served: tuple[Server, Path, Path]) -> AsyncIterator[Place]:
    server, allowed, outside = served
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        yield Place(server, client, allowed, outside)


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
        found = (await box.commands.run("grep ' /in ' /proc/self/mounts")).check().stdout
        assert {"nosuid", "nodev"} <= set(found.split()[3].split(","))


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
        "ln -s nowhere/x dangling; ln -s loop loop; mkdir a; ln -s ../.. a/b; touch file; mkfifo pipe"
    )
    await place.said(script, Volume.named("planted", "/data"))
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


async def test_crash_and_restart(new_server: Callable[..., Server]) -> None:
    server = new_server("local")
    kept, passing = Volume.named("kept", "/k"), Volume.named("passing", "/p", delete_with_sandbox=True)
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        box = await AsyncSandbox.create(volumes=[kept, passing], client=client)
        await box.commands.run("echo 1 > /k/x; echo 2 > /p/x")
    server.crash()
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        again = await AsyncSandbox.connect(box.id, client=client)
        assert (await again.commands.run("cat /k/x /p/x")).stdout == "1\n2\n"
        await client.kill(box.id)
    assert os.listdir(server.data_dir / "volumes") == ["kept"]


async def test_killed_between_volume_and_sandbox(new_server: Callable[..., Server]) -> None:
    server = new_server("local")
    volume = {"name": "p", "mountPath": "/p", "pvc": {"claimName": "p", "deleteOnSandboxTermination": True}}
    body = {"image": {"uri": "host"}, "resourceLimits": {}, "timeout": 600, "volumes": [volume]}
    for milliseconds in (8, 30):
        making = threading.Thread(target=_post_quietly, args=(server, body))
        making.start()
        await asyncio.sleep(milliseconds / 1000)
        server.crash()
        making.join()
        server.start()
    server.delete_all()
    deadline = time.monotonic() + 10
    while os.listdir(server.data_dir / "volumes") and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert os.listdir(server.data_dir / "volumes") == []


def _post_quietly(server: Server, body: dict[str, Any]) -> None:
    try:
        server.request("POST", "/v1/sandboxes", json=body)
    except OSError:
        return
    except Exception as error:  # the server was killed meanwhile, which httpx has a name for
        assert type(error).__module__.startswith("httpx"), error
