# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Broken connections to a real daemon: a command's output is whole, or the error says that it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection, Exit, Output, StreamBroken, running
from casulo.client.records import Endpoint
from support.server import Server

from .wires import Line


@asynccontextmanager
async def behind(server: Server, cut_after: int | None = None) -> AsyncIterator[tuple[AsyncSandbox, Line]]:
    """A sandbox whose daemon is reached over a line that breaks."""
    async with (
        AsyncClient(Connection(server.url, server.api_key), retry_pauses=(0.01, 0.02)) as client,
        await AsyncSandbox.create(client=client) as straight,
    ):
        endpoint = await client.endpoint(straight.id, 44772)
        host, _, port = endpoint.address.rpartition(":")
        line = Line((host, int(port)), cut_after)
        async with line.listening() as address:
            crooked: Endpoint = replace(endpoint, address=address)
            yield AsyncSandbox(straight.info, client, endpoint=crooked), line
            await client.transport.close()  # the line may only end when nobody uses it


@pytest.mark.parametrize("cut_after", [400, 20_000, 500_000])
async def test_output_is_whole_after_a_cut(fake_server: Server, cut_after: int) -> None:
    async with behind(fake_server, cut_after) as (sandbox, line):
        result = await sandbox.commands.run("seq 200000; exit 3")
        assert result.stdout == "".join(f"{n}\n" for n in range(1, 200001))
        assert (result.exit_code, result.reason) == (3, "exit")
        assert result.merged
        assert line.connections > 1


async def test_a_cut_between_output_and_end_finds_the_end(fake_server: Server) -> None:
    async with behind(fake_server) as (sandbox, line):
        items = []
        async for item in sandbox.commands.stream("echo one; sleep 0.5; echo two; kill -9 $$"):
            items.append(item)
            if isinstance(item, Output) and item.data == b"one\n":
                line.cut()
        assert b"".join(i.data for i in items if isinstance(i, Output)) == b"one\ntwo\n"
        end = items[-1]
        assert isinstance(end, Exit)
        assert (end.exit_code, end.signal) == (137, "SIGKILL")


async def test_a_line_that_stays_dead_is_never_a_success(
    fake_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.3)
    async with behind(fake_server) as (sandbox, line):
        with pytest.raises(StreamBroken, match="not known") as caught:
            async for item in sandbox.commands.stream("echo one; sleep 30"):
                if isinstance(item, Output):
                    line._target = ("127.0.0.1", 1)
                    line.cut()
        assert caught.value.offset == 4
        assert caught.value.command_id


async def test_leaving_early_ends_the_command(fake_server: Server) -> None:
    async with behind(fake_server) as (sandbox, _):
        running_command = asyncio.ensure_future(sandbox.commands.run("exec sleep 4711"))
        await asyncio.sleep(0.3)
        running_command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running_command
        assert not (await sandbox.commands.run("pgrep -f 'sleep 471[1]'")).stdout


async def test_a_handler_that_raises_ends_the_command(fake_server: Server) -> None:
    def refuse(_: str) -> None:
        raise ValueError("enough")

    async with behind(fake_server) as (sandbox, _):
        with pytest.raises(ValueError, match="enough"):
            await sandbox.commands.run("echo x; exec sleep 4712", on_stdout=refuse)
        assert not (await sandbox.commands.run("pgrep -f 'sleep 471[2]'")).stdout


async def test_a_moved_endpoint_is_looked_up_again(fake_server: Server) -> None:
    async with behind(fake_server) as (sandbox, _):
        await asyncio.sleep(0)
        lost = AsyncSandbox(sandbox.info, sandbox._client, endpoint=Endpoint("127.0.0.1:1", {}, "http"))
        assert await lost.health()
