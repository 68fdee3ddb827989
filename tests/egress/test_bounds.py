# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What one sandbox can use up of what all share: the rest stays for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.internet import probe
from support.internet.boxes import Boxed, create
from support.internet.world import World
from support.server import Server

POLICY = {"egress": [{"action": "allow", "target": "good.test"}]}

STREAMS = """
import socket, sys, time
held = [socket.create_connection((sys.argv[1], 53), 20) for _ in range(4200)]
print("held", flush=True)
time.sleep(7)
"""

FLOWS = """
import socket, sys
held = []
for number in range(6000):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.sendto(b"no question", (sys.argv[1], 53))
    held.append(one)
    if len(held) > 200:
        held.pop(0).close()
print("held", flush=True)
"""

ASK = """
import sys
sys.path.insert(0, "/tmp")
import probe
print(probe.ask(sys.argv[1], "good.test", over="tcp"))
"""


@pytest.fixture
def pair(egress_server: Server) -> Iterator[list[Boxed]]:
    """One that takes all it can get, and another."""
    made = [create(egress_server, POLICY), create(egress_server, POLICY)]
    yield made
    for box in made:
        box.delete()


async def _others_answer(pair: list[Boxed], code: str) -> None:
    greedy, other = pair
    connection = Connection(greedy.server.url, greedy.server.api_key)
    async with AsyncClient(connection) as client:
        inside = await AsyncSandbox.connect(greedy.id, client=client)
        elsewhere = await AsyncSandbox.connect(other.id, client=client)
        await elsewhere.files.write("/tmp/probe.py", Path(probe.__file__).read_text())
        started = await inside.commands.start(
            ["bash", "-c", 'ulimit -n 8192; exec python3 -c "$0" "$1"', code, greedy.gateway]
        )
        while "held" not in (told := (await inside.commands.logs(started)).text):
            assert "Error" not in told, told
        answered = await elsewhere.commands.run(["python3", "-c", ASK, other.gateway], timeout=30)
        assert answered.ok, answered.stderr


async def test_streams_to_the_name_server(pair: list[Boxed], world: World) -> None:
    await _others_answer(pair, STREAMS)


async def test_flows_that_the_kernel_follows(pair: list[Boxed], world: World) -> None:
    await _others_answer(pair, FLOWS)
    assert pair[0].logged("too many flows at once")
    assert not pair[1].logged("too many flows at once")
