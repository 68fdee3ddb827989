# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes that nobody uses are paused, and woken by whoever wants to use them, also after a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest

from casulo.client.connection import Connection
from casulo.client.sync import Client, Sandbox
from casulo.model.errors import Code, InvalidRequest
from support.server import Server

IDLE = {"casulo.idle_pause_seconds": "2"}
WAKING = {**IDLE, "casulo.auto_resume": "enable"}


@pytest.fixture(params=["fake"])
def place(request: pytest.FixtureRequest) -> str:
    """Most of it is the server's, whatever runs the sandbox."""
    return str(request.param)


def made(server: Server, client: Client, extensions: Mapping[str, str], image: str = "host") -> Sandbox:
    return Sandbox.create(image, extensions=extensions, client=client)


def paused(client: Client, box: Sandbox, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while client.get(box.id).state != "Paused":
        assert time.monotonic() < deadline, client.get(box.id)
        time.sleep(0.1)


@pytest.fixture
def client(server: Server):
    with Client(Connection(server.url, server.api_key)) as opened:
        yield opened


@pytest.mark.parametrize("place", ["fake", "local"], indirect=True)
def test_paused_when_unused_and_woken_by_a_command(server: Server, client: Client) -> None:
    box = made(server, client, WAKING)
    for _ in range(2):
        paused(client, box)
        time.sleep(1.1)  # our client looks again after half of the time
        assert box.commands.run("echo awake").stdout == "awake\n"
        assert client.get(box.id).state == "Running"
    box.kill()


def test_woken_through_the_proxy(server: Server, client: Client) -> None:
    box = made(server, client, WAKING)
    paused(client, box)
    answer = server.request("GET", f"/v1/sandboxes/{box.id}/proxy/44772/ping")
    assert answer.status_code == 200
    assert client.get(box.id).state == "Running"
    box.kill()


def test_a_running_command_is_use(server: Server, client: Client) -> None:
    box = made(server, client, WAKING)
    said: list[str] = []
    working = threading.Thread(target=lambda: said.append(box.commands.run("sleep 5; echo done").stdout))
    working.start()
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        assert client.get(box.id).state == "Running"
        time.sleep(0.2)
    working.join()
    assert said == ["done\n"]
    paused(client, box)
    box.kill()


def test_without_the_wish_to_wake_it_stays_paused_until_resumed(server: Server, client: Client) -> None:
    box = made(server, client, IDLE)
    paused(client, box)
    server.request("GET", f"/v1/sandboxes/{box.id}/endpoints/44772")
    assert client.get(box.id).state == "Paused"
    box.resume()
    assert box.commands.run("echo again").stdout == "again\n"
    paused(client, box)
    box.kill()


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", "", "99999999"])
def test_what_is_no_time_is_refused(server: Server, client: Client, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        made(server, client, {"casulo.idle_pause_seconds": text})
    assert refused.value.code == Code.INVALID_PARAMETER


def test_a_restarted_server_goes_on_pausing_and_waking(new_server: Callable[..., Server], place: str) -> None:
    server = new_server(place)
    with Client(Connection(server.url, server.api_key)) as client:
        asleep, awake = (
            made(server, client, WAKING),
            made(server, client, {**WAKING, **{"casulo.idle_pause_seconds": "6"}}),
        )
        paused(client, asleep)
    server.crash()
    server.start()
    with Client(Connection(server.url, server.api_key)) as client:
        again = Sandbox.connect(asleep.id, client=client)
        assert client.get(asleep.id).state == "Paused"
        assert again.commands.run("echo back").stdout == "back\n"
        paused(client, awake)
        for box_id in (asleep.id, awake.id):
            client.kill(box_id)
