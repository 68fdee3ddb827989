# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools of virtual machines: each is restored ahead, stands still, and becomes one sandbox only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from casulo.client import Client, Connection, Sandbox
from support import microvm
from support.processes import lives
from support.server import Server

pytestmark = pytest.mark.timeout(microvm.SECONDS)

POOLS = "[pools.named.machines]\nimage = 'host'\nmin = 1\nmax = 1\n"
ASK = "echo $A $OPENSANDBOX_ID; hostname; cat /etc/machine-id /proc/sys/kernel/random/uuid"


@pytest.fixture(scope="module", params=["microvm"])
def pooled(new_module_server: Callable[..., Server]) -> Server:
    return new_module_server("microvm", POOLS)


@pytest.fixture
def client(pooled: Server) -> Iterator[Client]:
    with Client(Connection(pooled.url, pooled.api_key, request_timeout=microvm.SECONDS)) as made:
        yield made


def _full(client: Client) -> None:
    deadline = time.monotonic() + 120
    while (found := client.pools.get("machines")).available != 1:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def _draw(client: Client, **more: Any) -> Sandbox:
    request = {"timeout": 600, "extensions": {"poolRef": "machines"}, **more}
    return Sandbox.connect(client.create(request)[0].id, client=client)


def _hits(server: Server) -> float:
    text = server.request("GET", "/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if 'draws{outcome="hit"}' in line)


def _machines(server: Server) -> dict[str, int]:
    """Name and monitor of each machine that is no spare one."""
    found = server.data_dir.glob("microvms/*/process")
    return {
        path.parent.name: int(path.read_text().split()[0])
        for path in found
        if not path.parent.name.startswith("spare-")
    }


def test_a_machine_of_a_pool_becomes_one_sandbox(client: Client, pooled: Server) -> None:
    told, before = [], _hits(pooled)
    for name in ("one", "two"):
        _full(client)
        member = set(_machines(pooled))
        box = _draw(client, env={"A": name}, entrypoint=["sh", "-c", "echo up; sleep 99"])
        assert {box.id} == member
        words = box.commands.run(ASK).stdout.split()
        assert words[:3] == [name, box.id, f"casulo-{box.id[:8]}"]
        told.append(set(words[1:]))
        logs = pooled.request("GET", f"/v1/sandboxes/{box.id}/diagnostics/logs?scope=all").json()
        assert logs["content"] == "up\n"
        box.pause()
        box.resume()
        assert box.commands.run("echo still here").stdout == "still here\n"
        box.kill()
    assert _hits(pooled) == before + 2
    assert not told[0] & told[1]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_machine_that_was_stopped_or_killed_is_never_handed_out(
    client: Client, pooled: Server, number: signal.Signals
) -> None:
    _full(client)
    (monitor,) = _machines(pooled).values()
    os.kill(monitor, number)
    box = _draw(client)
    assert _machines(pooled)[box.id] != monitor
    assert box.commands.run("echo works").stdout == "works\n"
    box.kill()


def test_a_killed_servers_members_are_gone(client: Client, pooled: Server) -> None:
    _full(client)
    left = _machines(pooled)
    pooled.crash()
    pooled.start()
    with Client(Connection(pooled.url, pooled.api_key, request_timeout=microvm.SECONDS)) as again:
        _full(again)
        assert not set(left) & set(_machines(pooled))
        assert not [pid for pid in left.values() if lives(pid)]
