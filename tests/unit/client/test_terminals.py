# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Terminals, watches and archives on a real daemon."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Client, Conflict, Connection, NotFound, Sandbox
from support.server import Server

from .wires import Line


@pytest.fixture
async def box(fake_server: Server) -> AsyncIterator[AsyncSandbox]:
    connection = Connection(fake_server.url, fake_server.api_key)
    async with AsyncClient(connection) as client, await AsyncSandbox.create(client=client) as made:
        yield made


async def test_a_terminal_is_one(box: AsyncSandbox) -> None:
    async with await box.terminals.create("stty size; read x; stty size; echo got $x; exit 3") as terminal:
        await terminal.connect()
        seen = b""
        async for data in terminal.output():
            seen += data
            if seen.endswith(b"24 80\r\n"):
                await terminal.resize(120, 40)
                await terminal.write("word\n")
        assert seen == b"24 80\r\nword\r\n40 120\r\ngot word\r\n"
        assert terminal.exit_code == 3
        assert terminal.offset == len(seen)


async def test_signals_and_the_end(box: AsyncSandbox) -> None:
    async with await box.terminals.create(
        "trap 'echo caught; exit 9' INT; echo up; while :; do sleep 1; done"
    ) as shell:
        await shell.connect()
        seen = b""
        async for data in shell.output():
            seen += data
            if seen == b"up\r\n":
                assert (await shell.status()).running
                await shell.signal("SIGINT")
        assert (seen, shell.exit_code) == (b"up\r\ncaught\r\n", 9)
    with pytest.raises(NotFound):
        await shell.status()


async def test_one_writes_others_look_on(box: AsyncSandbox) -> None:
    async with await box.terminals.create("cat") as first:
        await first.connect()
        with pytest.raises(Conflict):
            await box.terminals.attach(first.id).connect()
        viewer = box.terminals.attach(first.id)
        await viewer.connect(view=True)
        await first.write("hello\n")
        seen = b""
        async for data in viewer.output():
            seen += data
            if seen.count(b"hello") == 2:
                break
        other = box.terminals.attach(first.id)
        await other.connect(takeover=True)
        with pytest.raises(Conflict, match="taken over"):
            async for _ in first.output():
                pass
        await other.disconnect()
        await viewer.disconnect()


async def test_a_broken_line_is_taken_up_at_the_same_byte(box: AsyncSandbox) -> None:
    endpoint = await box._channel.endpoint()
    host, _, port = endpoint.address.rpartition(":")
    line = Line((host, int(port)), cut_after=200_000)
    async with line.listening() as address:
        crooked = AsyncSandbox(box.info, box._client, endpoint=replace(endpoint, address=address))
        async with await crooked.terminals.create("seq 100000; exit 4") as terminal:
            await terminal.connect()
            seen = b"".join([data async for data in terminal.output()])
            assert seen == b"".join(b"%d\r\n" % n for n in range(1, 100001))
            assert terminal.exit_code == 4
            assert line.connections > 1
        await box._client.transport.close()


def test_terminals_without_await(fake_server: Server) -> None:
    with (
        Client(Connection(fake_server.url, fake_server.api_key)) as client,
        Sandbox.create(client=client) as box,
        box.terminals.create("echo hi") as terminal,
    ):
        terminal.connect()
        assert b"".join(terminal.output()) == b"hi\r\n"
        assert terminal.exit_code == 0


async def test_watching_a_directory(box: AsyncSandbox, tmp_path: Path) -> None:
    changes = []
    async for change in box.files.watch(str(tmp_path), recursive=True):
        changes.append((change.kind, Path(change.path).name))
        if change.kind == "watching":
            (tmp_path / "new").mkdir()
        elif changes[-1] == ("created", "new"):
            (tmp_path / "new" / "file").write_text("x")
        elif changes[-1] == ("written", "file"):
            (tmp_path / "new" / "file").unlink()
        elif changes[-1] == ("deleted", "file"):
            break
    assert [kind for kind, name in changes if name == "file"][-2:] == ["written", "deleted"]


async def test_trees_as_archives(box: AsyncSandbox, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("a/one", "a/two"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"abc"))
    assert await box.files.unpack(str(tmp_path / "tree"), packed.getvalue()) == 2
    assert (tmp_path / "tree/a/two").read_text() == "abc"
    back = b"".join([chunk async for chunk in box.files.pack(str(tmp_path / "tree"))])
    with tarfile.open(fileobj=io.BytesIO(back)) as archive:
        assert sorted(archive.getnames()) == ["a", "a/one", "a/two"]


async def test_metrics_and_processes(box: AsyncSandbox) -> None:
    command = await box.commands.start(["sleep", "4714"])
    assert ("sleep", "4714") in [process.command for process in await box.processes()]
    samples = []
    async for sample in box.watch_metrics():
        samples.append(sample)
        if len(samples) == 2:
            break
    assert samples[0].timestamp < samples[1].timestamp
    await box.commands.interrupt(command)


async def test_sessions_keep_state_and_can_be_interrupted(box: AsyncSandbox) -> None:
    async with await box.sessions.create("/tmp") as session:
        assert (await session.run("export WORD=kept; cd /; pwd")).stdout == "/\n"
        assert (await session.run("echo $WORD $PWD")).stdout == "kept /\n"
        failed = await session.run("exit 7")
        assert (failed.exit_code, failed.reason) == (7, "exit")
        waiting = asyncio.ensure_future(session.run("echo waiting; sleep 60"))
        await asyncio.sleep(0.3)
        await session.interrupt()
        ended = await asyncio.wait_for(waiting, 10)
        assert (ended.interrupted, ended.stdout) == (True, "waiting\n")
        assert (await session.run("echo $WORD")).stdout == "kept\n"
    with pytest.raises(NotFound):
        await session.run("true")
