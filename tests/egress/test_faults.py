# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The process dies, its table is damaged, the sets are full: nothing that is denied ever gets through."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.internet.boxes import Boxed, create, make_server, process_of
from support.internet.world import World
from support.server import Server

RECOVERY_SECONDS = 15.0
LOOP = """
import json, socket, sys, time
until, good, denied = time.time() + float(sys.argv[1]), [], 0
while time.time() < until:
    tries = ((sys.argv[2], 80, 'evil.test'), (sys.argv[3], 80, 'evil.test'), ('good.test', 80, 'good.test'))
    for host, port, name in tries:
        try:
            s = socket.create_connection((host, port), 1)
            s.settimeout(1)
            s.sendall(f'GET / HTTP/1.0\\r\\nHost: {name}\\r\\n\\r\\n'.encode())
            got = s.recv(200)
            s.close()
        except OSError:
            continue
        if b' 200 ' in got and name == 'good.test':
            good.append(time.time())
        elif b' 200 ' in got:
            denied += 1
print(json.dumps({'good': good, 'denied': denied}))
"""


@pytest.fixture
def server(world: World, tmp_path: Path) -> Iterator[Server]:
    made = make_server(tmp_path / "server", world).start()
    yield made
    made.delete_all()
    made.stop()


async def under_fire(box: Boxed, world: World, seconds: float, fault) -> dict:
    """Connections without a pause while the fault happens; what came through, and when."""
    async with AsyncClient(Connection(box.server.url, box.server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        await inside.files.write("/tmp/loop.py", LOOP)
        command = ["python3", "/tmp/loop.py", str(seconds), world.at(80), world.at(81)]
        started = await inside.commands.start(command)
        time.sleep(1.5)
        when = time.time()
        fault()
        done = await inside.commands.wait(started, timeout=seconds + 30)
        text = (await inside.commands.logs(started)).text
    assert done.exit_code == 0, text
    told = json.loads(text)
    later = [moment for moment in told["good"] if moment > when + 0.2]
    assert told["good"] and told["denied"] == 0, told["denied"]
    assert later and later[0] - when < RECOVERY_SECONDS, "allowed connections did not recover"
    return told


def allowed(server: Server) -> Boxed:
    return create(server, {"egress": [{"action": "allow", "target": "good.test"}]})


@pytest.mark.parametrize("ground", ["container", "docker"], indirect=True)
async def test_b066_the_process_is_killed(ground: tuple[Server, str], world: World) -> None:
    server = ground[0]
    box = allowed(server)

    def kill() -> None:
        os.kill(pid_of(server), signal.SIGKILL)

    await under_fire(box, world, 10, kill)
    assert box.policy()["status"] == "ok"
    box.delete()


async def test_b066_killed_while_the_server_is_down_it_stays_closed(server: Server, world: World) -> None:
    box = allowed(server)
    pid = pid_of(server)
    server.crash()
    os.kill(pid, signal.SIGKILL)
    script = f"curl -s -m 2 http://{world.at(81)}/; curl -s -m 2 http://good.test/; echo done"
    inside = _inside(server, box, script)
    assert inside.strip() == "done"
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        again = await AsyncSandbox.connect(box.id, client=client)
        assert (await again.commands.run("curl -sSf -m 5 http://good.test/")).ok
        assert not (await again.commands.run(f"curl -sSf -m 5 http://{world.at(81)}/")).ok


async def test_b066_the_table_is_deleted(server: Server, world: World) -> None:
    box = allowed(server)
    table = process_of(server)["table"]

    def delete() -> None:
        subprocess.run(["nft", "delete", "table", "inet", table], check=True, timeout=20)

    await under_fire(box, world, 8, delete)
    assert _health(server)["rebuilt"] >= 1


async def test_b066_the_server_is_killed_and_another_policy_comes(server: Server, world: World) -> None:
    box = allowed(server)
    server.crash()
    server.start()
    told = box.policy("PUT", {"egress": [{"action": "allow", "target": "other.test"}]})
    assert told["policy"]["egress"][0]["target"] == "other.test"


async def test_b066_a_set_that_is_full(server: Server) -> None:
    """An address that cannot be opened is not told, and the sandbox's state says so."""
    box = allowed(server)
    table = process_of(server)["table"]
    size = 262144
    elements = ", ".join(f'"x" . 1.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}' for n in range(size))
    fill = f"add element inet {table} learned {{ {elements} }}\n"
    done = subprocess.run(["nft", "-f", "-"], input=fill, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[:300]
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        assert not (await inside.commands.run("getent hosts good.test", timeout=20)).ok
    assert box.logged("took no more addresses")
    told = box.policy()
    assert told["status"] == "failed" and "failures" in told["reason"]


def pid_of(server: Server) -> int:
    return int(str(_health(server)["pid"]))


def _health(server: Server) -> dict[str, object]:
    from casulo.network.egress.calls import call

    told: dict[str, object] = call(Path(process_of(server)["socket"]), "GET", "/health")
    return told


def _inside(server: Server, box: Boxed, script: str) -> str:
    """A command in the sandbox's network while no server runs."""
    slot = (server.data_dir / "sandboxes" / box.id / "slot").read_text()
    run = Path(process_of(server)["socket"]).parents[1]
    command = ["nsenter", f"--net={run}/netns/{int(slot):x}", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
