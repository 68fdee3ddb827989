# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Input for commands, on a real daemon."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncIterator

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection, Output, Started
from support.server import Server

BIG = random.Random(5).randbytes(3_000_000)


@pytest.fixture
async def box(fake_server: Server) -> AsyncIterator[AsyncSandbox]:
    connection = Connection(fake_server.url, fake_server.api_key)
    async with AsyncClient(connection) as client, await AsyncSandbox.create(client=client) as made:
        yield made


@pytest.mark.parametrize("source", ["text", b"bytes", io.BytesIO(BIG), [b"in ", b"pieces"]], ids=type)
async def test_what_goes_in_comes_out(
    box: AsyncSandbox, source: str | bytes | io.BytesIO | list[bytes]
) -> None:
    result = await box.commands.run("cat", stdin=source)
    wanted = {str: b"text", bytes: b"bytes", io.BytesIO: BIG, list: b"in pieces"}[type(source)]
    assert result.ok
    assert result.stdout_bytes == wanted


async def test_input_that_nobody_reads_is_no_error(box: AsyncSandbox) -> None:
    result = await box.commands.run("head -c 3", stdin=BIG)
    assert result.stdout_bytes == BIG[:3]


async def test_without_input_there_is_none(box: AsyncSandbox) -> None:
    assert (await box.commands.run("cat")).stdout == ""


async def test_a_conversation(box: AsyncSandbox) -> None:
    heard, command_id = b"", ""
    async for item in box.commands.stream("read a; echo got $a; read b; echo got $b; cat", stdin=True):
        if isinstance(item, Started):
            command_id = item.command_id
            await box.commands.write_stdin(command_id, "one\n")
        elif isinstance(item, Output):
            heard += item.data
            if item.data == b"got one\n":
                await box.commands.write_stdin(command_id, b"two\n")
            elif item.data == b"got two\n":
                await box.commands.write_stdin(command_id, b"end")
                await box.commands.close_stdin(command_id)
    assert heard == b"got one\ngot two\nend"


async def test_a_source_that_fails_is_told_and_the_command_does_not_wait_for_ever(box: AsyncSandbox) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"first"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await box.commands.run("cat", stdin=failing())
