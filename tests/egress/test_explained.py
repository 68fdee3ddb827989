# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a policy did can be read, learned from and bounded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from support.internet.boxes import Boxed, connected, create, make_server, reach
from support.internet.world import World
from support.server import Server

PATIENCE_SECONDS = 30.0
MANY = """
import socket, sys
held, failed = [], 0
for number in range(40):
    try:
        s = socket.create_connection((sys.argv[1], 80), 5)
        s.settimeout(5)
        s.sendall(b'GET / HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n')
        if not s.recv(1):
            raise OSError('closed')
        held.append(s)
    except OSError:
        failed += 1
print(len(held), failed)
"""


def osb(server: Server, *words: str) -> list[str]:
    command = [sys.executable, "-m", "casulo.cli", "--domain", server.domain, "--api-key", server.api_key]
    return [*command, "egress", *words]


async def inside(box: Boxed, command: str) -> str:
    async with AsyncClient(Connection(box.server.url, box.server.api_key)) as client:
        done = await (await connected(box, client)).commands.run(command, timeout=60)
    assert done.ok, done
    return done.stdout


async def test_a_policy_is_learned_from_what_was_reached(egress_server: Server) -> None:
    box = create(egress_server, {"defaultAction": "allow"})
    uses = "curl -sSf http://good.test/ http://other.test:8080/ >/dev/null"
    await inside(box, uses)
    told = subprocess.run(osb(egress_server, "learn", box.id), capture_output=True, text=True, timeout=60)
    learned = json.loads(told.stdout)
    assert learned["defaultAction"] == "deny"
    assert {rule["target"] for rule in learned["egress"]} == {"good.test", "other.test"}
    box.policy("PUT", learned)
    await inside(box, uses)
    assert await reach(box, "a.wild.test", "other.test:80", "evil.test") == [False, False, False]
    box.delete()


async def test_the_log_is_followed_with_every_byte_counted(egress_server: Server) -> None:
    box = create(egress_server, {"egress": [{"action": "allow", "target": "good.test"}]})
    lines: list[dict[str, object]] = []
    async with AsyncClient(Connection(egress_server.url, egress_server.api_key)) as client:
        await inside(box, "curl -sSf http://good.test/bytes/100000 >/dev/null; ! curl -sf http://evil.test/")
        sandbox = await connected(box, client)
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            aclosing(sandbox.egress.log(follow=True)) as following,
        ):
            async for line in following:
                lines.append(line)
                if {"closed", "deny"} <= {str(each["decision"]) for each in lines}:
                    break
    closed = next(line for line in lines if line["decision"] == "closed")
    assert (closed["name"], closed["port"]) == ("good.test", 80) and int(str(closed["bytesDown"])) > 100000
    denied = next(line for line in lines if line.get("name") == "evil.test")
    assert denied["decision"] == "deny" and denied["rule"] == "default deny"
    box.delete()


async def test_presets_and_search_domains(egress_server: Server, world: World) -> None:
    box = create(
        egress_server, {"egress": [{"action": "allow", "target": t} for t in ("preset:pypi", "good.test")]}
    )
    async with AsyncClient(Connection(egress_server.url, egress_server.api_key)) as client:
        sandbox = await connected(box, client)
        await sandbox.files.write("/tmp/ca.pem", world.authority.read_text())
        for host, reached in (("pypi.org", True), ("files.pythonhosted.org", True), ("github.com", False)):
            done = await sandbox.commands.run(
                f"curl -sSf -m 8 --cacert /tmp/ca.pem https://{host}/", timeout=30
            )
            assert done.ok is reached, (host, done.stderr)
        await sandbox.commands.run("echo search corp.test test >> /etc/resolv.conf")
        assert (await sandbox.commands.run("getent hosts good", timeout=30)).ok
        assert not (await sandbox.commands.run("getent hosts evil", timeout=30)).ok
    box.delete()


@pytest.fixture
def bounded(world: World, tmp_path: Path) -> Iterator[Server]:
    """A server whose sandboxes may have few connections."""
    made = make_server(tmp_path / "server", world)
    bounds = "[egress]\nmax_connections = 12\nconnections_per_second = 10\n"
    made.extra = made.extra.replace("[egress]\n", bounds)
    made.start()
    yield made
    made.delete_all()
    made.stop()


async def test_connections_are_bounded_by_number_and_rate(bounded: Server, world: World) -> None:
    rules = {"egress": [{"action": "allow", "target": "good.test"}]}
    box, neighbour = create(bounded, rules), create(bounded, rules)
    async with AsyncClient(Connection(bounded.url, bounded.api_key)) as client:
        sandbox = await connected(box, client)
        await sandbox.files.write("/tmp/many.py", MANY)
        await sandbox.commands.run("getent hosts good.test")
        done = await sandbox.commands.run(f"python3 /tmp/many.py {world.at(80)}", timeout=90)
    held, failed = map(int, done.stdout.split())
    assert 0 < held <= 12 and held + failed == 40
    assert box.logged("too many open connections") or box.logged("too many new connections per second")
    assert await reach(neighbour, "good.test") == [True]
