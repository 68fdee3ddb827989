# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What became of a command: the result of a finished one, the status and logs of any."""

from __future__ import annotations

import codecs
import inspect
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from casulo.client.records import moment
from casulo.client.stream import Ending, Event, Exit, Output, StreamName
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
class Result(Ending):
    """A command that ended, with all that it wrote.

    `merged` tells that after a broken connection part of the output came from the command's log, which does
    not tell stdout from stderr; that part stands in stdout.
    """

    id: str = ""
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)
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
        return self.exit_code == 0 and not self.reason

    def check(self) -> Result:
        """The result itself, or CommandFailed when it is not ok."""
        if not self.ok:
            raise CommandFailed(self)
        return self

    def summary(self) -> str:
        """How it ended, with the last line of stderr."""
        last = self.stderr.strip().rpartition("\n")[2]
        return f"{self.sentence()}: {last}" if last else self.sentence()


@dataclass(frozen=True)
class CommandStatus(Ending):
    """A command as the daemon remembers it. While it runs, `exit_code` is None and `reason` empty."""

    id: str = ""
    content: str = ""
    running: bool = False
    output_bytes: int = 0
    truncated_bytes: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None

    def exit(self) -> Exit:
        """The end, as the stream of events would have told it."""
        return Exit(self.exit_code, self.reason, self.signal, self.error, self.duration_ms)

    @staticmethod
    def read(data: Any) -> CommandStatus:
        """From the daemon's answer, where a command that could not be started has a code all the same."""
        began, ended = _moment(data.get("started_at")), _moment(data.get("finished_at"))
        code, reason = data.get("exit_code"), str(data.get("reason") or "")
        return CommandStatus(
            exit_code=None if code is None or reason in ("start", "not_found") else int(code),
            reason=reason,
            signal=_signal_name(code) if reason == "signal" else "",
            error=str(data.get("error") or ""),
            duration_ms=round((ended - began).total_seconds() * 1000) if began and ended else 0,
            id=str(data["id"]),
            content=str(data.get("content") or ""),
            running=bool(data["running"]),
            output_bytes=int(data.get("output_bytes") or 0),
            truncated_bytes=int(data.get("truncated_bytes") or 0),
            started_at=began,
            finished_at=ended,
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
        stdout, stderr = await self.collected()
        if self._exit is None:
            raise AssertionError("a stream of events gives an Exit or raises")
        return Result(
            **vars(self._exit), id=command_id, stdout_bytes=stdout, stderr_bytes=stderr, merged=merged
        )

    async def collected(self) -> tuple[bytes, bytes]:
        """Both outputs, once nothing more comes."""
        for stream in ("stdout", "stderr"):
            await self._hand_over(stream, b"", final=True)
        return b"".join(self._kept["stdout"]), b"".join(self._kept["stderr"])

    async def _hand_over(self, stream: str, data: bytes, *, final: bool) -> None:
        handler = self._handlers[stream]
        text = self._decoders[stream].decode(data, final) if handler else ""
        if handler is None or not text:
            return
        answer = handler(text)
        if inspect.isawaitable(answer):
            await answer


def _moment(text: str | None) -> datetime | None:
    return moment(text) if text else None


def _signal_name(code: int | None) -> str:
    try:
        return signal.Signals((code or 0) - 128).name
    except ValueError:
        return ""
