# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Attempts to reach what a policy does not name, each of which must fail and be explained by the log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.internet import attempts as table
from support.internet import probe
from support.internet.attempts import Attempt, Places
from support.internet.boxes import Boxed, create, process_of, results
from support.internet.world import World
from support.server import Server

_PLACEHOLDER = World(Path("/"), 2)
_NOWHERE = Places("10.0.0.1", "10.0.0.2", 1, 2, 3)
STRICT = [a.name for a in table.attempts(_PLACEHOLDER, _NOWHERE)]
OPEN = [a.name for a in table.allowing(_PLACEHOLDER)]


def places(server: Server, box: Boxed, neighbour: Boxed) -> Places:
    """Where the sandbox's surroundings are on this machine."""
    port = int(server.url.rpartition(":")[2])
    process = process_of(server)
    return Places(box.gateway, neighbour.address, port, process["port_entry"], process["port_dns"])


class Tried:
    """All attempts of one table, made at once in one sandbox."""

    def __init__(
        self,
        box: Boxed,
        made: list[Attempt],
        found: dict[str, dict[str, Any]],
        heard: list[tuple[str, str, str]],
    ) -> None:
        self.box = box
        self.heard = heard
        self.attempts = {attempt.name: attempt for attempt in made}
        self.found = found

    def check(self, name: str) -> None:
        """It got nowhere, and the log says why."""
        told = self.found[name]
        assert not told["out"], f"{name} got out: {told['told']}"
        why = self.attempts[name].why
        if why:
            assert self.box.logged(why), (
                f"{name}: {told['told']}\nno line has {why}:\n{self.box.log()[-3000:]}"
            )


async def _run(server: Server, policy: dict[str, Any], isolation: str, world: World, strict: bool) -> Tried:
    boxed, other = create(server, policy, isolation), create(server, None, isolation)
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        box = await AsyncSandbox.connect(boxed.id, client=client)
        where = places(server, boxed, other)
        before = len(world.heard())
        made = table.attempts(world, where) if strict else table.allowing(world)
        await box.files.write("/tmp/probe.py", Path(probe.__file__).read_text())
        listed = [(a.name, a.function, a.arguments) for a in made]
        await box.files.write("/tmp/attempts.json", json.dumps(listed))
        # The shared address has to be open for the names that are allowed.
        await box.commands.run("getent hosts good.test half.test a.wild.test also.good.test")
        done = await box.commands.run("python3 /tmp/probe.py /tmp/attempts.json", timeout=170)
        assert done.ok, done.stderr
    await asyncio.sleep(0.3)
    other.delete()
    return Tried(boxed, made, results(done.stdout), world.heard()[before:])


@pytest.fixture(scope="module")
def tried(ground: tuple[Server, str], world: World) -> Tried:
    """The attempts under a policy that denies by default."""
    server, isolation = ground
    return asyncio.run(_run(server, table.POLICY, isolation, world, True))


@pytest.fixture(scope="module")
def tried_open(ground: tuple[Server, str], world: World) -> Tried:
    """The attempts under a policy that allows by default."""
    server, isolation = ground
    return asyncio.run(_run(server, table.ALLOWING, isolation, world, False))


@pytest.mark.parametrize("name", STRICT)
def test_stopped(tried: Tried, name: str) -> None:
    tried.check(name)


@pytest.mark.parametrize("name", OPEN)
def test_stopped_although_the_default_is_open(tried_open: Tried, name: str) -> None:
    tried_open.check(name)


def test_nothing_of_it_reached_the_small_internet(tried: Tried, world: World) -> None:
    """The servers' own account: no name, no request and no datagram that was denied came through."""
    heard = tried.heard
    assert not [h for h in heard if "denied.test" in h[1] or "evil.test" in h[1]]
    assert not [h for h in heard if h[0] in (f"dns {world.at(54)}", f"http {world.at(81)}")]
    assert not [h for h in heard if h[0].startswith("udp")]


def test_there_are_enough_of_them() -> None:
    assert len(set(STRICT)) == len(STRICT) >= 60
