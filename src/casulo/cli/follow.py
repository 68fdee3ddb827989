# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Running a remote command in the foreground: its bytes become ours, its end becomes our exit code.

    exit code n              n            time limit passed        124
    ended by signal n        128 + n      could not be started     126 or 127 (no such program)

Ctrl-C interrupts the remote command and ends with 130 when it ended; a second one leaves at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, BinaryIO

from casulo.cli.printer import Printer, note

if TYPE_CHECKING:
    from casulo.client import AsyncSandbox, Ending, Result
    from casulo.client.commands import Command

TIMED_OUT = 124
NOT_STARTED = 126
NOT_FOUND = 127
INTERRUPTED = 130
_BYTES = ("stdout_bytes", "stderr_bytes", "merged")


async def follow(
    sandbox: AsyncSandbox, command: Command, printer: Printer, options: Mapping[str, Any]
) -> int:
    """Run `command`, copy its output or print its result as JSON; returns the exit code for this process."""
    from casulo.client import Exit, Output, Started

    if printer.json:
        result = await sandbox.commands.run(command, **options)
        printer.record(_described(result))
        return code_of(result)
    outputs = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    async with Interrupts() as interrupts, aclosing(sandbox.commands.stream(command, **options)) as items:
        async for item in items:
            match item:
                case Started(command_id):
                    interrupts.first = lambda: sandbox.commands.interrupt(command_id)
                case Output(stream, data):
                    _copy(data, outputs[stream])
                case Exit():
                    describe_end(item)
                    stopped = interrupts.used and item.interrupted and item.signal
                    return INTERRUPTED if stopped else code_of(item)
    raise AssertionError("a stream of events gives an Exit or raises")


def code_of(end: Ending) -> int:
    """The exit code that stands for this end."""
    if end.timed_out:
        return TIMED_OUT
    if end.exit_code is None:
        return NOT_FOUND if end.reason == "not_found" else NOT_STARTED
    return end.exit_code


def describe_end(end: Ending) -> None:
    """Say on stderr how it ended where the exit code alone would mislead."""
    if end.timed_out or end.out_of_memory or end.exit_code is None or end.reason == "signal":
        note(f"osb: {end.sentence()}")


def _copy(data: bytes, output: BinaryIO) -> None:
    output.write(data)
    output.flush()


def _described(result: Result) -> dict[str, object]:
    output = {"stdout": result.stdout, "stderr": result.stderr}
    return {name: value for name, value in vars(result).items() if name not in _BYTES} | output


class Interrupts:
    """While it is entered, the first Ctrl-C calls `first`, every other one cancels this task."""

    def __init__(self) -> None:
        self.first: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.used = False
        self._asked: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Interrupts:
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._pressed)
        return self

    async def __aexit__(self, *exc: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        if self._asked is not None:  # its failure is no news: the command had ended by then
            await asyncio.gather(self._asked, return_exceptions=True)

    def _pressed(self) -> None:
        first, self.first = self.first, None
        if first is not None:
            self.used = True
            self._asked = asyncio.ensure_future(first())
        elif self._task is not None:
            self._task.cancel()
