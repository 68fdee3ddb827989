# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What only virtual machines do: pause to disk, fork with memory, end in their own way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from casulo.client import (
    AsyncClient,
    AsyncSandbox,
    Client,
    Conflict,
    Connection,
    InvalidRequest,
    NotFound,
    Sandbox,
    Unsupported,
)
from casulo.model.errors import CasuloError
from support import microvm
from support.images import ImageParts, LayoutWriter, archive, busybox, folder
from support.server import Server
from support.traces import instance_of

pytestmark = pytest.mark.timeout(microvm.SECONDS)

MANIFEST = (
    "cd /root/tree && find . -printf '%P %y %m %u %s\\n' | sort && find . -type f | sort | xargs sha256sum"
)


@pytest.fixture
async def client(machines: Server) -> AsyncIterator[AsyncClient]:
    connection = Connection(machines.url, machines.api_key, request_timeout=microvm.SECONDS)
    async with AsyncClient(connection) as made:
        yield made


async def _said(box: AsyncSandbox, command: str) -> str:
    done = await box.commands.run(command)
    assert done.exit_code == 0, done
    return done.stdout.strip()


async def _until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_paused_machine_comes_back_with_everything(client: AsyncClient, machines: Server) -> None:
    """B051, B055: files, processes, listeners, the clock, and no memory in between."""
    async with await AsyncSandbox.create("host", client=client) as box:
        await _said(box, "mkdir /root/tree; nohup sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid")
        for cycle in range(5):
            await _said(
                box,
                f"cd /root/tree; seq 1000 > file{cycle}; echo {cycle} > file0; rm -f file{cycle - 1};"
                f"rm -rf dir*; mkdir -m 70{cycle} dir{cycle}; chown {cycle + 1} dir{cycle}",
            )
            before = await _said(box, MANIFEST)
            await box.pause()
            assert _monitors(machines, box.id) == []
            await box.resume()
            assert await _said(box, MANIFEST) == before
        assert await _said(box, "kill -0 $(cat /root/pid) && echo alive") == "alive"
        clock = float(await _said(box, "date +%s.%N"))
        assert time.time() - 10 < clock < time.time() + 1


async def test_two_from_one_template_share_nothing_that_should_be_their_own(client: AsyncClient) -> None:
    ask = (
        "head -c 32 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; cat /etc/machine-id;"
        "hostname; cat /sys/class/net/eth0/address; grep -m1 10[.] /proc/net/fib_trie"
    )
    boxes = [await AsyncSandbox.create("host", client=client) for _ in range(2)]
    try:
        first, second = [(await _said(box, ask)).split("\n") for box in boxes]
        assert len(first) == len(second) >= 6
        assert all(ours != theirs for ours, theirs in zip(first, second, strict=True))
    finally:
        for box in boxes:
            await box.kill()


async def test_limits_hold_inside(client: AsyncClient) -> None:
    limits = {"memory": "256Mi", "disk": "64Mi", "pids": "40"}
    async with await AsyncSandbox.create("host", client=client, resources=limits) as box:
        full = await box.commands.run("dd if=/dev/zero of=/root/big bs=1M count=100")
        assert full.exit_code == 1 and "No space left" in full.stderr
        await _said(box, "rm /root/big; echo room > /root/small")
        hog = await box.commands.run(["python3", "-c", "a = []\nwhile True: a.append(b'x' * 10**7)"])
        assert (hog.exit_code, hog.reason) == (137, "oom")
        crowd = await box.commands.run(["dash", "-c", "for i in $(seq 60); do sleep 300 & done"], timeout=60)
        assert crowd.exit_code != 0 and "fork" in crowd.stderr
        assert await _said(box, "cat /root/small") == "room"


async def test_a_snapshot_goes_on_as_many(client: AsyncClient) -> None:
    loop = "i=0; while :; do i=$((i+1)); echo $i > /root/count; sleep 0.1; done"
    source = await AsyncSandbox.create("host", client=client, env={"WHO": "parent"})
    await _said(source, f"nohup sh -c '{loop}' >/dev/null 2>&1 & sleep 1; echo kept > /root/kept")
    snapshot = await source.snapshot()
    children = []
    try:
        with pytest.raises(Conflict, match="entrypoint"):
            await AsyncSandbox.create(snapshot=snapshot.id, entrypoint=["sleep", "9"], client=client)
        for name in ("one", "two"):
            child = await AsyncSandbox.create(snapshot=snapshot.id, env={"WHO": name}, client=client)
            children.append(child)
            first = int(await _said(child, "cat /root/count"))
            await _said(child, f"until test $(cat /root/count) -gt {first}; do sleep 0.1; done")
            assert (
                await _said(child, "cat /root/kept; echo $WHO; echo $OPENSANDBOX_ID")
                == f"kept\n{name}\n{child.id}"
            )
        assert (
            await _said(source, "echo $WHO; echo changed > /root/kept; cat /root/kept") == "parent\nchanged"
        )
        assert await _said(children[0], "cat /root/kept") == "kept"
        assert len({await _said(box, "cat /proc/sys/kernel/random/uuid") for box in (source, *children)}) == 3
    finally:
        for box in (source, *children):
            await box.kill()
        await client.snapshots.delete(snapshot.id)


async def test_templates_keep_what_was_warmed_up(client: AsyncClient) -> None:
    warm = (
        "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i > /root/beat; sleep 0.2; done' >/dev/null 2>&1 &"
    )
    await client.templates.build("beating", warm=[warm], ready="test -d /root")
    try:
        assert [found.name for found in await client.templates.list()] == ["beating"]
        async with await AsyncSandbox.create(template="beating", client=client) as box:
            first = int(await _said(box, "cat /root/beat"))
            await _said(box, f"until test $(cat /root/beat) -gt {first}; do sleep 0.1; done")
    finally:
        await client.templates.delete("beating")
    with pytest.raises(NotFound, match="beating"):
        await AsyncSandbox.create(template="beating", client=client)


async def test_a_paused_machine_wakes_for_whoever_wants_to_reach_it(client: AsyncClient) -> None:
    wish = {"casulo.auto_resume": "enable"}
    async with await AsyncSandbox.create("host", extensions=wish, client=client) as box:
        await box.pause()
        again = await AsyncSandbox.connect(box.id, client=client)
        assert await _said(again, "echo awake") == "awake"
        assert (await client.get(box.id)).state == "Running"


async def test_a_killed_monitor_is_seen_and_leaves_nothing(client: AsyncClient, machines: Server) -> None:
    box = await AsyncSandbox.create("host", client=client)
    taps = _taps(machines)
    os.kill(_monitors(machines, box.id)[0], signal.SIGKILL)
    while (await client.get(box.id)).state == "Running":
        await asyncio.sleep(0.05)
    assert (await client.get(box.id)).state in ("Failed", "Terminated")
    told = machines.request("GET", f"/v1/sandboxes/{box.id}/diagnostics/logs").text
    assert "the virtual machine ended by itself" in told
    await box.kill()
    await _until(lambda: len(_taps(machines)) < len(taps) or _taps(machines) != taps)
    assert not list(machines.data_dir.glob(f"microvms/{box.id}"))
    assert not list(Path("/run/casulo").glob(f"*/vm/{box.id}"))


@pytest.mark.parametrize(
    "limits",
    [
        {"memory": "64Mi"},
        {"memory": "1000000000000"},
        {"memory": "1Ei"},
        {"disk": "1Mi"},
        {"disk": "100Ti"},
        {"cpu": "64"},
    ],
)
async def test_what_no_machine_could_be_is_refused_at_once(client: AsyncClient, limits: dict) -> None:
    with pytest.raises((InvalidRequest, Unsupported), match=next(iter(limits))):
        await AsyncSandbox.create("host", resources=limits, client=client)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> LayoutWriter:
    return LayoutWriter(tmp_path_factory.mktemp("layout") / "oci")


@pytest.fixture(scope="module", params=["microvm"])
def restarted(new_module_server: Callable[..., Server], layout: LayoutWriter) -> Iterator[Server]:
    """A server that takes images from a layout; its tests may end it."""
    yield new_module_server("microvm", f'[images]\nsources = ["{layout.folder}"]\n')


def test_paused_and_running_machines_survive_the_servers_death(restarted: Server) -> None:
    with Client(_connection(restarted)) as client:
        paused = Sandbox.create("host", client=client)
        running = Sandbox.create("host", client=client)
        for box in (paused, running):
            assert box.commands.run("echo before > /root/kept").exit_code == 0
        paused.pause()
        spares = {path.name for path in restarted.data_dir.glob("microvms/spare-*")}
        _cut_short(restarted, running)
    restarted.start()
    assert not spares & {path.name for path in restarted.data_dir.glob("microvms/*")}
    with Client(_connection(restarted)) as client:
        again = Sandbox.connect(running.id, client=client)
        assert again.commands.run("cat /root/kept").stdout == "before\n"
        assert abs(float(again.commands.run("date +%s.%N").stdout) - time.time()) < 10
        for one in client.snapshots.list():  # cut short, or quicker than the kill; nothing in between
            assert one.state in ("Failed", "Ready"), one
            client.snapshots.delete(one.id)
        assert client.get(paused.id).state == "Paused"
        client.resume(paused.id)
        back = Sandbox.connect(paused.id, client=client)
        assert back.commands.run("cat /root/kept").stdout == "before\n"
        for box in (again, back):
            box.kill()
        again = Sandbox.create("host", client=client)
        back = Sandbox.create("host", client=client)
        back.commands.run("nohup sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid").check()
        back.pause()
    _reboot(restarted)
    with Client(_connection(restarted)) as client:
        assert client.get(again.id).state in ("Failed", "Terminated")
        assert client.get(back.id).state == "Paused"
        client.resume(back.id)
        woken = Sandbox.connect(back.id, client=client)
        assert woken.commands.run("kill -0 $(cat /root/pid) && echo alive").stdout == "alive\n"
        for box_id in (again.id, back.id):
            client.kill(box_id)
    _leaves_nothing(restarted)


def _reboot(server: Server) -> None:
    """Take everything that a host loses: processes, devices, rules, control groups, what is in memory."""
    server.crash()
    instance = instance_of(server.data_dir)
    while monitors := [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, server)]:
        for path in monitors:
            os.kill(int(path.parent.name), signal.SIGKILL)
        time.sleep(0.1)
    for tap in _taps(server):
        subprocess.run(["ip", "link", "delete", tap], check=True)
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    for table in (line.split() for line in listed.splitlines() if f"casulo_{instance}" in line):
        subprocess.run(["nft", "delete", *table], check=True)
    shutil.rmtree(Path("/run/casulo") / instance)
    groups = Path("/sys/fs/cgroup").glob(f"**/casulo/{instance}m/**/cgroup.procs")
    for group in sorted(groups, key=lambda path: -len(path.parts)):
        group.parent.rmdir()
    server.start()


def _cut_short(server: Server, box: Sandbox) -> None:
    """Kill the server while a machine stands still for a snapshot of it."""

    def give_up() -> None:
        with contextlib.suppress(CasuloError):
            box.snapshot()

    asking = threading.Thread(target=give_up)
    asking.start()
    while not list(server.data_dir.glob("microvm-snapshots/*.part")):
        time.sleep(0.001)
    server.crash()
    asking.join()


def _leaves_nothing(server: Server) -> None:
    """A server that ends takes what nobody uses with it; its sandboxes are gone before."""
    server.stop()
    try:
        assert not list(server.data_dir.glob("microvms/*")) and not _taps(server)
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, server)]
    finally:
        server.start()


def _names(cmdline: Path, server: Server) -> bool:
    try:
        words = cmdline.read_bytes()
    except OSError:  # it ended
        return False
    return b"qemu" in words and f"/run/casulo/{instance_of(server.data_dir)}/".encode() in words


def test_an_image_of_layers_is_a_disk(restarted: Server, layout: LayoutWriter) -> None:
    layers = [busybox("pwd"), archive(folder("srv/work"))]
    config = {
        "Cmd": ["/bin/sleep", "600"],
        "WorkingDir": "/srv/work",
        "User": "1234:77",
        "Env": ["FROM=image"],
    }
    layout.add("tiny", ImageParts(layers, config))
    with Client(_connection(restarted)) as client:
        box = Sandbox.create(layout.reference("tiny"), client=client)
        done = box.commands.run("id -u; id -g; pwd; echo $FROM; echo x > /tmp/y || echo denied")
        assert done.stdout.split()[:4] == ["1234", "77", "/srv/work", "image"]
        box.kill()


def _connection(server: Server) -> Connection:
    return Connection(server.url, server.api_key, request_timeout=microvm.SECONDS)


def _monitors(server: Server, sandbox_id: str) -> list[int]:
    """The living monitor's process, by the sandbox's own note of it."""
    pid, started = (server.data_dir / "microvms" / sandbox_id / "process").read_text().split()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return []
    return [int(pid)] if fields[19] == started and fields[0] not in "ZX" else []


def _taps(server: Server) -> set[str]:
    return {
        name for _, name in socket.if_nameindex() if name.startswith(f"csl{instance_of(server.data_dir)}m")
    }
