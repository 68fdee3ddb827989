# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The line to a machine: orders, answers, events, and a guest that says what it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from casulo.model.errors import RuntimeFailure, TimedOut
from casulo.runtimes.microvm import wire
from casulo.runtimes.microvm.link import Link

Guest = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Callable[[Guest], Awaitable[Link]]]:
    """Opens a line to a guest that is played by a coroutine."""
    opened: list[Link] = []
    servers = []

    async def open_to(guest: Guest) -> Link:
        async def played(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await guest(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_unix_server(played, tmp_path / "link")
        servers.append(server)
        opened.append(await Link.open(partial(wire.unix, tmp_path / "link")))
        return opened[-1]

    yield open_to
    for link in opened:
        await link.close()
    for server in servers:
        server.close()


async def test_answers_find_their_orders(connect) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        orders = [json.loads(await reader.readline()) for _ in range(2)]
        for order in reversed(orders):
            writer.write(json.dumps({"id": order["id"], "output": order["do"]}).encode() + b"\n")

    link = await connect(guest)
    first, second = await asyncio.gather(link.ask("one", 5), link.ask("two", 5))
    assert (first["output"], second["output"]) == ("one", "two")


async def test_nonsense_is_passed_over(connect) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'\xff\n[]\n{"id": 77}\n{"id": "x"}\n{"event":"waiting"}\n')
        order = json.loads(await reader.readline())
        writer.write(json.dumps({"id": order["id"], "error": "no"}).encode() + b"\n")

    link = await connect(guest)
    with pytest.raises(RuntimeFailure, match="could not sync: no"):
        await link.ask("sync", 5)
    events = [json.loads(await link.event(5)) for _ in range(3)]
    assert events[-1] == {"event": "waiting"}


async def test_the_end_is_seen_at_once(connect) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    link = await connect(guest)
    with pytest.raises(RuntimeFailure, match="the machine ended"):
        await link.ask("sync", 30)
    with pytest.raises(RuntimeFailure, match="the machine ended"):
        await link.event(30)
    with pytest.raises(RuntimeFailure, match="the machine ended"):
        await link.ask("sync", 30)


async def test_endless_lines_and_floods_end_or_are_dropped(connect) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"event":"again"}\n' * 1000 + b"x" * (1 << 20))
        await writer.drain()

    link = await connect(guest)
    for _ in range(64):
        await link.event(5)
    with pytest.raises((RuntimeFailure, TimedOut)):
        await link.event(0.2)


async def test_silence_is_bounded(connect) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)

    link = await connect(guest)
    with pytest.raises(TimedOut):
        await link.ask("sync", 0.1)
