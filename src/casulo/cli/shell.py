# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb shell`: a real terminal in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli.arguments import SandboxId, Workdir, shell_text
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client.terminals import AsyncTerminal

_CHUNK = 64 << 10


def shell(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="What to run instead of a shell, after `--`.", show_default=False),
    ] = None,
    workdir: Workdir = None,
) -> None:
    """Open a terminal in a sandbox; it ends with its shell or with ours, and its exit code is ours."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("this is no terminal; for scripts there is `osb command run`")
    state = State.of(ctx)

    async def main() -> int:
        async with state.sandbox(sandbox_id) as sandbox:
            command = shell_text(words) if words else None
            async with await sandbox.terminals.create(command, cwd=workdir) as terminal:
                return await _converse(terminal)

    raise typer.Exit(run(main()))


async def _converse(terminal: AsyncTerminal) -> int:
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()

    def resized() -> None:
        typed.put_nowait(None)

    await terminal.connect()
    resized()
    with _raw(keyboard):
        loop.add_reader(keyboard, lambda: typed.put_nowait(os.read(keyboard, _CHUNK)))
        loop.add_signal_handler(signal.SIGWINCH, resized)
        sending = asyncio.create_task(_send(terminal, typed))
        try:
            async with aclosing(terminal.output()) as output:
                async for data in output:
                    _write_all(screen, data)
        finally:
            loop.remove_reader(keyboard)
            loop.remove_signal_handler(signal.SIGWINCH)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return terminal.exit_code or 0


async def _send(terminal: AsyncTerminal, typed: asyncio.Queue[bytes | None]) -> None:
    """What is typed; None stands for a changed size. While the line is being mended, keys are dropped."""
    from casulo.client import Disconnected

    while True:
        data = await typed.get()
        try:
            if data is None:
                await terminal.resize(*os.get_terminal_size())
            else:
                await terminal.write(data)
        except Disconnected:
            continue


@contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    """Keys come one by one and unchanged, Ctrl-C included: the remote terminal gives them their meaning."""
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _write_all(screen: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(screen, view) :]
