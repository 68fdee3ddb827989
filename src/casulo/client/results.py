# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What became of a command: the result of a finished one, the status and logs of any."""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from casulo.client.records import moment
from casulo.client.stream import Event, Exit, Output, StreamName
from casulo.model.errors import CasuloError

Handler = Callable[[str], object]
"""Gets the next piece of text; may return an awaitable, which is awaited before the next piece."""

COMMAND_FAILED = "CLIENT::COMMAND_FAILED"


class CommandFailed(CasuloError):
    """Raised by `Result.check()`; `result` has everything."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.summary(), code=COMMAND_FAILED)
        self.result = result


@dataclass(frozen=True)
class Result:
    """A command that ended. `exit_code` is None only when it could not be started; `error` says why.

    `merged` tells that after a broken connection part of the output came from the command's log, which does
    not tell stdout from stderr; that part stands in stdout.
    """

    id: str
    exit_code: int | None
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    error: str = ""
    signal: str = ""
    timed_out: bool = False
    out_of_memory: bool = False
    duration_ms: int = 0
    merged: bool = False

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are no UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> Result:
        """The result itself, or CommandFailed when it is not ok."""
        if not self.ok:
            raise CommandFailed(self)
        return self

    def summary(self) -> str:
        """One sentence on how it ended, with the last line of stderr."""
        if self.timed_out:
            text = "the command passed its time limit and was killed"
        elif self.out_of_memory:
            text = "the command was killed because the memory limit of the sandbox was reached"
        elif self.signal:
            text = f"the command was ended by {self.signal}"
        elif self.exit_code is None:
            text = f"the command could not be started: {self.error}"
        else:
            text = f"the command ended with exit code {self.exit_code}"
        last = self.stderr.strip().rpartition("\n")[2]
        return f"{text}: {last}" if last else text


@dataclass(frozen=True)
class CommandStatus:
    """A command as the daemon remembers it. `exit_code` is None while it runs."""

    id: str
    content: str
    running: bool
    exit_code: int | None = None
    error: str = ""
    signal: str = ""
    timed_out: bool = False
    out_of_memory: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None

    def exit(self) -> Exit:
        """How it ended, as the stream of events would have told it."""
        took = self.finished_at - self.started_at if self.finished_at and self.started_at else timedelta()
        return Exit(
            exit_code=self.exit_code,
            error=self.error,
            signal=self.signal,
            timed_out=self.timed_out,
            out_of_memory=self.out_of_memory,
            duration_ms=round(took.total_seconds() * 1000),
        )

    @staticmethod
    def read(data: Any) -> CommandStatus:
        """From the daemon's answer."""
        code = data.get("exit_code")
        return CommandStatus(
            id=str(data["id"]),
            content=str(data.get("content") or ""),
            running=bool(data["running"]),
            exit_code=None if code is None else int(code),
            error=str(data.get("error") or ""),
            started_at=moment(data["started_at"]) if data.get("started_at") else None,
            finished_at=moment(data["finished_at"]) if data.get("finished_at") else None,
        )


@dataclass(frozen=True)
class Logs:
    """A piece of a command's output; `cursor` is where the next piece begins."""

    data: bytes
    cursor: int

    @property
    def text(self) -> str:
        """The piece as text; bytes that are no UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")


class Capture:
    """Collects the output of one command and feeds the handlers with whole characters."""

    def __init__(self, on_stdout: Handler | None, on_stderr: Handler | None, *, keep: bool) -> None:
        self._handlers = {"stdout": on_stdout, "stderr": on_stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self._kept: dict[StreamName, list[bytes]] = {"stdout": [], "stderr": []}
        self._keep = keep
        self._exit: Exit | None = None

    async def take(self, item: Event) -> None:
        """The next item of the stream."""
        if isinstance(item, Exit):
            self._exit = item
        if not isinstance(item, Output):
            return
        if self._keep:
            self._kept[item.stream].append(item.data)
        if self._handlers[item.stream] is not None:
            await self._hand_over(item.stream, item.data, final=False)

    async def result(self, command_id: str, *, merged: bool) -> Result:
        """The result, once the stream gave its Exit."""
        for stream in ("stdout", "stderr"):
            await self._hand_over(stream, b"", final=True)
        if self._exit is None:
            raise AssertionError("a stream of events gives an Exit or raises")
        return Result(
            id=command_id,
            exit_code=self._exit.exit_code,
            stdout_bytes=b"".join(self._kept["stdout"]),
            stderr_bytes=b"".join(self._kept["stderr"]),
            error=self._exit.error,
            signal=self._exit.signal,
            timed_out=self._exit.timed_out,
            out_of_memory=self._exit.out_of_memory,
            duration_ms=self._exit.duration_ms,
            merged=merged,
        )

    async def _hand_over(self, stream: str, data: bytes, *, final: bool) -> None:
        handler = self._handlers[stream]
        text = self._decoders[stream].decode(data, final) if handler else ""
        if handler is None or not text:
            return
        answer = handler(text)
        if inspect.isawaitable(answer):
            await answer
