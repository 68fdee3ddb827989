# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the Docker runtime adds to what every runtime promises: the engine's part of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection
from casulo.client.records import SandboxInfo
from casulo.model.errors import CasuloError, Code, NotFound, Unsupported
from casulo.runtimes.docker import program
from casulo.runtimes.docker.engine import Engine as Client
from casulo.runtimes.docker.network import Network
from casulo.runtimes.docker.plan import Names
from casulo.runtimes.docker.settings import DockerSettings
from support.dockered import Place, said
from support.engine import BUSYBOX, IMAGE, Engine
from support.server import Server


async def _until(client: AsyncClient, sandbox_id: str, *states: str) -> SandboxInfo:
    for _ in range(400):
        info = await client.get(sandbox_id)
        if info.state in states:
            return info
        await asyncio.sleep(0.05)
    raise AssertionError(f"still {info.state}")


async def test_limits_are_the_kernels(place: Place) -> None:
    limits = {"cpu": "500m", "memory": "128Mi", "pids": "50", "shm": "32Mi"}
    async with await place.start(IMAGE, resources=limits) as box:
        found = json.loads(place.engine.docker("inspect", place.container(box)))[0]["HostConfig"]
        assert found["CpuQuota"] / found["CpuPeriod"] == 0.5
        assert found["Memory"] == found["MemorySwap"] == 128 << 20
        hog = await box.commands.run(["python3", "-c", "x = bytearray(300 << 20)"])
        assert (hog.exit_code, hog.reason) == (137, "oom")
        assert await said(box, "sh", "-c", "set -- $(df -m /dev/shm | tail -1); echo $2") == "32"
        forks = await box.commands.run("for i in $(seq 200); do sleep 5 & done; wait", timeout=20)
        assert "fork" in forks.stderr.lower() or not forks.ok
        assert (await box.commands.run(["true"])).ok


async def test_nothing_secret_is_in_the_containers_configuration(place: Place) -> None:
    async with await place.start(env={"SECRET": "hunter2"}) as box:
        token = dict((await box.endpoint(44772)).headers)["X-EXECD-ACCESS-TOKEN"]
        told = place.engine.docker("inspect", place.container(box))
        told += place.engine.docker("logs", place.container(box))
        assert token not in told and "hunter2" not in told
        inside = await said(box, "sh", "-c", "cat /proc/1/environ /proc/1/cmdline 2>&1; env")
        assert token not in inside and "SECRET=hunter2" in inside


async def test_root_inside_is_held(place: Place) -> None:
    async with await place.start(IMAGE) as box:
        status = await said(box, "grep", "-E", "CapBnd|NoNewPrivs|Seccomp:", "/proc/self/status")
        assert int(status.split()[1], 16) & (1 << 21 | 1 << 12 | 1 << 27 | 1 << 13) == 0, (
            "nothing administrative"
        )
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        for command in ("mount -t tmpfs x /mnt", "unshare --user true", "mknod /tmp/disk b 254 0"):
            assert not (await box.commands.run(command)).ok, command
        assert not (await box.commands.run("echo x > /opt/opensandbox/daemon/execd")).ok


async def test_neighbours_and_the_host_are_out_of_reach(place: Place) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        async with await place.start(IMAGE) as one, await place.start(IMAGE) as other:
            address = (await other.endpoint(44772)).address.partition(":")[0]
            gateway = str(IPv4Address(address) - 1)
            for host, number in ((address, 44772), (gateway, port)):
                probe = f"import socket; socket.create_connection(({host!r}, {number}), timeout=2)"
                done = await one.commands.run(["python3", "-c", probe])
                assert not done.ok and "Error" in done.stderr, (host, done)
            assert (await other.commands.run(["true"])).ok, "this server reaches both"


def _accept(listener: socket.socket) -> None:
    try:
        while True:
            listener.accept()[0].close()
    except OSError:
        return  # closed: the test is over


async def test_ends_are_seen_whoever_made_them(place: Place) -> None:
    killed, removed, ended, hungry = await asyncio.gather(
        place.start(),
        place.start(),
        place.start(entrypoint=["sh", "-c", "sleep 1; echo last words; kill -TERM $$"]),
        place.start(
            IMAGE,
            entrypoint=["python3", "-c", "import time; time.sleep(1); x = bytearray(1 << 30)"],
            resources={"memory": "64Mi"},
        ),
    )
    place.engine.docker("kill", place.container(killed))
    info = await _until(place.client, killed.id, "Failed", "Terminated")
    assert info.state == "Failed" and "SIGKILL" in info.message, info
    place.engine.docker("rm", "--force", place.container(removed))
    assert (await _until(place.client, removed.id, "Failed", "Terminated")).state == "Failed"
    info = await _until(place.client, ended.id, "Failed", "Terminated")
    assert info.state == "Failed" and "SIGTERM" in info.message, info
    log = place.server.request("GET", f"/v1/sandboxes/{ended.id}/diagnostics/logs?tail=5")
    assert log.text == "last words\n"
    path, made = log.url.path, info.created_at
    for since, told in ((made + timedelta(seconds=0.1), log.text), (datetime.now(UTC), "")):
        found = place.server.request("GET", path, params={"since": since.isoformat()})
        assert found.text == told, since
    info = await _until(place.client, hungry.id, "Failed", "Terminated")
    assert "memory" in info.message, info
    for box in (killed, removed, ended, hungry):
        await box.kill()


async def test_after_a_crash_reality_and_intent_agree(new_server, engine: Engine) -> None:
    server: Server = new_server("docker")
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        kept, gone, ended = [
            await AsyncSandbox.create(BUSYBOX, client=client, entrypoint=words)
            for words in (["sleep", "600"], ["sleep", "600"], ["sh", "-c", "sleep 2; exit 9"])
        ]
        place = Place(server, engine, client, server.data_dir)
        name = place.container(kept)
        labels = ("casulo.instance", "casulo.sandbox")
        stamp = json.loads(engine.docker("inspect", name))[0]["Config"]["Labels"]
        server.crash()
        orphan = name.replace(kept.id, "of-nobody")
        marks = [f"--label={labels[0]}={stamp[labels[0]]}", f"--label={labels[1]}=of-nobody"]
        engine.docker("run", "-d", "--network=none", "--name", orphan, *marks, BUSYBOX)
        engine.docker("run", "-d", "--network=none", "--name", "somebody-elses", *marks, BUSYBOX)
        engine.docker("rm", "--force", place.container(gone))
        await asyncio.sleep(2)
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        info = await _until(client, ended.id, "Failed", "Terminated")
        assert info.state == "Failed" and "9" in info.message, info
        await _until(client, gone.id, "Failed", "Terminated")
        again = await AsyncSandbox.connect(kept.id, client=client)
        assert (await again.commands.run(["true"])).ok
        names = engine.docker("ps", "--all", "--format", "{{.Names}}").split()
        assert orphan not in names and "somebody-elses" in names
        await again.pause()
        server.crash()
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        again = await AsyncSandbox.connect(kept.id, client=client)
        assert again.info.state == "Paused"
        await again.resume()
        assert (await again.commands.run(["true"])).ok
    engine.docker("rm", "--force", "somebody-elses")


async def test_a_stopped_server_leaves_nothing_when_it_had_nothing(new_server, engine: Engine) -> None:
    before = engine.ours()
    server: Server = new_server("docker")
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        box = await AsyncSandbox.create(BUSYBOX, client=client)
        assert engine.ours() != before
        await box.kill()
    server.stop()
    assert engine.ours() == before


@pytest.mark.parametrize("reach", ["published", "direct"])
async def test_both_ways_to_reach_a_sandbox(new_server, reach: str) -> None:
    server: Server = new_server("docker", local=f'reach = "{reach}"\n')
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        boxes = await asyncio.gather(*(AsyncSandbox.create(BUSYBOX, client=client) for _ in range(6)))
        endpoints = {(await box.endpoint(44772)).address for box in boxes}
        assert len(endpoints) == 6, "no two share an address"
        assert all(address.startswith("127.0.0.1:") is (reach == "published") for address in endpoints)
        for box in boxes:
            assert await said(box, "/bin/true") == ""
            await box.kill()


async def test_an_absent_runtime_and_isolation_are_refused(place: Place) -> None:
    for extensions in ({"casulo.docker_runtime": "runsc"}, {"casulo.isolation": "microvm"}):
        with pytest.raises(CasuloError) as refused:
            await place.start(extensions=extensions)
        assert refused.value.code in (Code.NOT_SUPPORTED, Code.ISOLATION_UNAVAILABLE)


async def test_what_it_reports_is_what_it_does(place: Place) -> None:
    report = place.server.request("GET", "/v1/capabilities").json()["runtimes"][0]
    assert [(one["name"], one["default"], one["engine"]) for one in report["isolations"]] == [
        ("container", True, "runc")
    ]
    able = report["isolations"][0]
    assert {"snapshot", "egress"} <= set(able["features"])


async def test_a_policy_that_nobody_would_enforce_is_refused(new_server) -> None:
    server: Server = new_server("docker", local='reach = "published"\n')
    report = server.request("GET", "/v1/capabilities").json()["runtimes"][0]["isolations"][0]
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        with pytest.raises(Unsupported) as refused:
            await AsyncSandbox.create(BUSYBOX, network_policy={"egress": []}, client=client)
        assert refused.value.hint == report["missing"]["egress"]
        assert "published" in refused.value.hint
        box = await AsyncSandbox.create(BUSYBOX, client=client)
        with pytest.raises(Unsupported):
            await box.egress.set({"egress": []})
        await box.kill()


async def test_a_chosen_subnet_is_filtered_too(engine: Engine) -> None:
    settings = DockerSettings(host=engine.url, subnet=IPv4Network("10.213.250.0/29"))
    client, names = Client(settings), Names(secrets.token_hex(5))
    await client.open()
    network = Network(client, names, settings)
    await network.open()
    assert (network.unfiltered, network.shares_machine, network.direct) == ("", True, True)
    await network.close(last=True)
    await client.close()


async def test_gvisor_that_starts_nothing_is_not_offered(engine: Engine) -> None:
    settings = DockerSettings(host=engine.url)
    client, names = Client(settings), Names(secrets.token_hex(5))
    await client.open()
    volume = await program.install(client, names)
    assert await program.why_not_started(client, names, volume, "none", "runc") == ""
    assert "runsc" in await program.why_not_started(client, names, volume, "none", "runsc")
    await program.remove(client, names)
    await client.close()


async def test_an_image_that_goes_during_a_start_is_named(place: Place) -> None:
    source = await place.start()
    snapshot = await source.snapshot()
    name = place.engine.docker(
        "images", "--format", "{{.Repository}}:{{.Tag}}", f"casulo-snapshot/*:{snapshot.id}"
    ).strip()
    place.engine.docker("rmi", name)
    with pytest.raises(NotFound) as gone:
        await AsyncSandbox.create(snapshot=snapshot, client=place.client)
    assert gone.value.code == Code.SNAPSHOT_NOT_FOUND
    await place.client.snapshots.delete(snapshot.id)
    await source.kill()


async def test_deleting_during_create_leaves_nothing(place: Place) -> None:
    before = place.engine.ours()["containers"]
    for delay in (0.0, 0.1, 0.2):
        creating = asyncio.create_task(place.start())
        await asyncio.sleep(delay)
        creating.cancel()
        (made,) = await asyncio.gather(creating, return_exceptions=True)
        if isinstance(made, AsyncSandbox):  # it was quicker
            await made.kill()
    for _ in range(300):
        if not (await place.client.list()).items and place.engine.ours()["containers"] == before:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(place.engine.ours())
