# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""An engine that is away for a while: what is asked of it is refused with 503, and nothing is lost.

A relay in front of the session's engine is taken away, so that no other test meets the outage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo.client import AsyncClient, AsyncSandbox, CasuloError, Connection
from casulo.model.errors import Code
from support.dockered import said
from support.engine import BUSYBOX, Engine
from support.server import Server

AWAY = "the Docker engine does not answer"


class Relay:
    """A socket that leads to the engine's, until it is cut."""

    def __init__(self, own: Path, engine: Path) -> None:
        self._own, self._engine = own, engine
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Lead there again, if it does not."""
        if self._own.exists():
            return
        self._server = await asyncio.start_unix_server(self._serve, self._own)

    def cut(self) -> None:
        """No connection lives on, and none can be made."""
        assert self._server is not None
        self._server.close()
        self._own.unlink(missing_ok=True)
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._engine)
        self._open |= {writer, back}
        with contextlib.suppress(OSError):
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        for each in (writer, back):
            self._open.discard(each)
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@pytest.fixture
async def outage(engine: Engine, tmp_path: Path) -> AsyncIterator[tuple[Relay, AsyncClient]]:
    relay = Relay(tmp_path / "relay.sock", engine.folder / "docker.sock")
    await relay.open()
    server = Server(
        tmp_path / "server", "docker", f'[docker]\nhost = "unix://{tmp_path}/relay.sock"\n', BUSYBOX
    )
    await asyncio.to_thread(server.start)
    try:
        async with AsyncClient(Connection(server.url, server.api_key)) as client:
            yield relay, client
        await relay.open()
        await asyncio.to_thread(server.delete_all)
    finally:
        await asyncio.to_thread(server.stop)
        relay.cut()


async def test_an_engine_that_is_away_changes_nothing(outage: tuple[Relay, AsyncClient]) -> None:
    relay, client = outage
    running = await AsyncSandbox.create(BUSYBOX, client=client)
    paused = await AsyncSandbox.create(BUSYBOX, client=client)
    await paused.pause()
    relay.cut()
    with pytest.raises(CasuloError, match=AWAY):
        await AsyncSandbox.create(BUSYBOX, client=client)
    with pytest.raises(CasuloError, match=AWAY):
        await running.snapshot()
    for call in (paused.resume, running.pause):
        with pytest.raises(CasuloError, match=AWAY) as caught:
            await call()
        assert caught.value.code == Code.RUNTIME_UNAVAILABLE
    assert await said(running, "echo", "here") == "here", "the engine is not in the way of commands"
    await relay.open()
    await _becomes(running, "Running")
    await _becomes(paused, "Paused")
    await paused.resume()
    await running.pause()
    assert (await running.refresh()).state == "Paused"
    assert await said(paused, "echo", "here") == "here"


async def _becomes(box: AsyncSandbox, state: str) -> None:
    """What an outage cut short is settled once it is over."""
    for _ in range(600):
        if (await box.refresh()).state == state:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"it is {(await box.refresh()).state}, not {state}")
