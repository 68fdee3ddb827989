# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools on real runtimes: nothing of a sandbox tells that it was started before it was asked for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from casulo.client import Client, Connection, Sandbox
from casulo.model.errors import Conflict, NotFound, Unavailable
from support.server import Server

NewServer = Callable[..., Server]
POOLS = "[pools.named.small]\nimage = 'host'\nresources = { memory = '64Mi' }\nmin = 2\nmax = 2\n"


@pytest.fixture(params=["fake", "local"], scope="module")
def served(request: pytest.FixtureRequest, new_module_server: NewServer) -> Server:
    return new_module_server(request.param, POOLS)


@pytest.fixture
def client(served: Server) -> Iterator[Client]:
    with Client(Connection(served.url, served.api_key)) as made:
        yield made


def full(client: Client, name: str, ready: int) -> None:
    deadline = time.monotonic() + 30
    while (found := client.pools.get(name)).available != ready:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@contextmanager
def drawn(client: Client, name: str, **more: Any) -> Iterator[Sandbox]:
    request = {"timeout": 600, "extensions": {"poolRef": name}, **more}
    info, _ = client.create(request)
    box = Sandbox.connect(info.id, client=client)
    yield box
    box.kill()


def hits(served: Server) -> float:
    text = served.request("GET", "/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if 'draws{outcome="hit"}' in line)


def test_its_user_sees_nothing_of_the_pool(client: Client, served: Server) -> None:
    full(client, "small", 2)
    before = hits(served)
    with drawn(
        client, "small", env={"A": "own"}, metadata={"m": "n"}, entrypoint=["sh", "-c", "echo up; sleep 99"]
    ) as box:
        assert hits(served) == before + 1
        told = box.commands.run("echo $A $OPENSANDBOX_ID; hostname; pwd").stdout.split()
        assert told[:2] == ["own", box.id]
        if served.runtime == "local":
            assert told[2] == f"casulo-{box.id[:8]}"
        assert client.get(box.id).metadata == {"m": "n"}
        body = served.request("GET", f"/v1/sandboxes/{box.id}").json()
        assert body["allocation"] == {"mode": "pool", "poolRef": "small", "state": "allocated"}
        logs = served.request("GET", f"/v1/sandboxes/{box.id}/diagnostics/logs?scope=all").json()
        assert logs["content"] == "up\n"
        assert client.pools.get("small").allocated == 1
        box.pause()
        box.resume()
        assert box.commands.run("true").exit_code == 0
    full(client, "small", 2)
    assert client.pools.get("small").allocated == 0


def test_b047_nobody_gets_what_another_used(client: Client) -> None:
    client.pools.create("twenty", {"image": {"uri": "host"}}, minimum=8, maximum=8)
    full(client, "twenty", 8)

    def use(number: int) -> tuple[str, str]:
        with drawn(client, "twenty", env={"MARK": str(number)}) as box:
            seen = box.commands.run("cat $HOME/mark 2>/dev/null; echo $MARK > $HOME/mark; cat $HOME/mark")
            return box.id, seen.stdout

    for _ in range(2):
        with ThreadPoolExecutor(12) as threads:
            results = list(threads.map(use, range(16)))
        assert len({box_id for box_id, _ in results}) == 16
        assert [text for _, text in results] == [f"{number}\n" for number in range(16)]
    client.pools.resize("twenty", minimum=0, maximum=1)
    full(client, "twenty", 1)
    client.pools.delete("twenty")
    with pytest.raises(NotFound):
        client.pools.get("twenty")


def test_b049_a_member_that_was_stopped_or_killed_is_never_handed_out(client: Client, served: Server) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        full(client, "small", 2)
        for pid in parked(served):
            os.kill(pid, number)
        for _ in range(3):
            with drawn(client, "small") as box:
                assert box.commands.run("echo works").stdout == "works\n"


def parked(served: Server) -> list[int]:
    """Daemons that wait for their boot message: below this server, with nothing below themselves."""
    assert served.process is not None
    own, found = served.process.pid, []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children = (entry / "task" / entry.name / "children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == own and words[1:2] == [b"--boot-fd"] and not children:
            found.append(int(entry.name))
    return found


def test_a_pool_of_the_configuration_and_an_empty_one_say_what_they_are(client: Client) -> None:
    with pytest.raises(Conflict):
        client.pools.delete("small")
    client.pools.create("none", {"image": {"uri": "host"}}, minimum=0, maximum=0, refuse_when_empty=True)
    with pytest.raises(Unavailable) as refused, drawn(client, "none"):
        pass
    assert refused.value.code == "POOL::CAPACITY_EXHAUSTED"
    client.pools.delete("none")


def test_a_killed_server_leaves_no_member_behind(new_server: NewServer) -> None:
    server = new_server("local", POOLS)
    with Client(Connection(server.url, server.api_key)) as client:
        full(client, "small", 2)
        info, _ = client.create({"timeout": 600, "extensions": {"poolRef": "small"}})
        full(client, "small", 2)
    folders = server.data_dir / "sandboxes"
    before = {path.name for path in folders.iterdir()} - {info.id}
    assert len(before) == 2
    server.crash()
    server.start()
    with Client(Connection(server.url, server.api_key)) as client:
        full(client, "small", 2)
        with Sandbox.connect(info.id, client=client) as box:
            assert box.commands.run("true").exit_code == 0
    deadline = time.monotonic() + 10
    while before & {path.name for path in folders.iterdir()}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_members_in_gvisor(new_server: NewServer) -> None:
    server = new_server("gvisor", POOLS.replace("2", "1"))
    with Client(Connection(server.url, server.api_key)) as client:
        full(client, "small", 1)
        with drawn(client, "small", env={"A": "own"}) as box:
            assert hits(server) == 1
            assert box.commands.run("echo $A $OPENSANDBOX_ID").stdout.split() == ["own", box.id]
            box.pause()
            box.resume()
            assert box.commands.run("true").exit_code == 0
        full(client, "small", 1)
        server.crash()
        server.start()
    with Client(Connection(server.url, server.api_key)) as client:
        full(client, "small", 1)
        with drawn(client, "small") as box:
            assert hits(server) == 1 and box.commands.run("true").exit_code == 0
    deadline = time.monotonic() + 20
    while len(list((server.data_dir / "sandboxes").iterdir())) > 1:
        assert time.monotonic() < deadline, "members of the killed server are left"
        time.sleep(0.1)
