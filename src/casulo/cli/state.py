# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the options before the command say, and the way from there to a server or a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from casulo.cli.arguments import Format
from casulo.cli.printer import Printer

if TYPE_CHECKING:
    from casulo.client import AsyncClient, AsyncSandbox, Connection

T = TypeVar("T")
_META = "casulo.cli.state"


@dataclass(frozen=True)
class State:
    """The global options as given; nothing is resolved before a command needs it."""

    domain: str | None = None
    api_key: str | None = None
    protocol: str | None = None
    request_timeout: float | None = None
    use_server_proxy: bool | None = None
    config_file: Path | None = None
    output: Format | None = None
    verbose: bool = False
    color: bool = True

    @staticmethod
    def of(ctx: typer.Context) -> State:
        """What the main command prepared, with the `--output` of the command itself where that was given."""
        state = ctx.find_object(State)
        assert state is not None
        if ctx.params.get("output") is not None:
            state = replace(state, output=ctx.params["output"])
        ctx.meta[_META] = state
        return state

    @staticmethod
    def last(ctx: Any) -> State:
        """The state that the command which just failed used."""
        found: State | None = ctx.meta.get(_META)
        return found or ctx.find_object(State) or State()

    def printer(self) -> Printer:
        """Prints in the format that was asked for."""
        color = self.color and "NO_COLOR" not in os.environ
        return Printer(self.output or Format.TABLE, color=color)

    def connection(self) -> Connection:
        """The server that options, environment and files name."""
        from casulo.client import Connection

        return Connection.resolve(
            domain=self.domain,
            api_key=self.api_key,
            protocol=self.protocol,
            request_timeout=self.request_timeout,
            use_server_proxy=self.use_server_proxy,
            config_file=self.config_file,
        )

    def config(self) -> dict[str, Any]:
        """The config file."""
        from casulo.client.connection import read_config

        return read_config(self.config_file)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client of that server."""
        from casulo.client import AsyncClient

        async with AsyncClient(self.connection()) as client:
            yield client

    @asynccontextmanager
    async def sandbox(self, sandbox_id: str) -> AsyncIterator[AsyncSandbox]:
        """A handle on one sandbox of that server."""
        from casulo.client import AsyncSandbox

        async with self.client() as client, await AsyncSandbox.connect(sandbox_id, client=client) as sandbox:
            yield sandbox


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end. Being told to go (TERM, HUP) cancels it, so that it cleans up."""
    return asyncio.run(_leaving_cleanly(main))


async def _leaving_cleanly(main: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def leave(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, number)
    try:
        return await main
    except asyncio.CancelledError:
        if received:
            raise typer.Exit(128 + received[0]) from None
        raise
