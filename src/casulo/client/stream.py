# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The event stream of a command, without any socket: bytes go in, output and the end come out.

The daemon is asked for raw framing: every output event carries the exact bytes and their offset in the
command's whole output, so that a lost or repeated piece is noticed. A daemon that knows only the line framing
(one event per line, its end cut off) is understood too; there the offsets are missing and cannot be checked.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Literal

from casulo.client.faults import BAD_ANSWER
from casulo.model.errors import RuntimeFailure

FRAMING_HEADER = "EXECD-STREAM-FRAMING"
RAW = "raw"

_LONGEST_HOLE = 6
"""Bytes of two unfinished characters, one per stream."""

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs. `command_id` is good for status, logs, stdin and interrupt from anywhere."""

    command_id: str


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that the command wrote, in the order in which the daemon read them."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    `exit_code` is what a shell would say (128 + number after a signal), or None when nothing was started.
    `reason` is empty after success, else one of exit, signal, timeout, interrupted, oom, start, not_found.
    """

    exit_code: int | None = None
    reason: str = ""
    signal: str = ""
    error: str = ""
    duration_ms: int = 0

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because it passed its time limit."""
        return self.reason == "timeout"

    @property
    def interrupted(self) -> bool:
        """Whether it was ended by `interrupt`."""
        return self.reason == "interrupted"

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it at the memory limit of the sandbox."""
        return self.reason == "oom"

    def sentence(self) -> str:
        """How it ended, for people."""
        if self.exit_code is None and self.reason in ("", "start", "not_found"):
            return f"the command could not be started: {self.error}"
        sentences = {
            "timeout": "the command passed its time limit and was killed",
            "interrupted": "the command was interrupted",
            "oom": "the command was killed because the memory limit of the sandbox was reached",
            "signal": f"the command was ended by {self.signal}",
            "session_reset": "the shell of the session stopped executing commands and was replaced",
        }
        return sentences.get(self.reason, f"the command ended with exit code {self.exit_code}")


@dataclass(frozen=True)
class Exit(Ending):
    """The last item of a stream."""


Event = Started | Output | Exit
"""What a stream gives: Started once, Output any number of times, and Exit as the last."""


class Frames:
    """Cuts the byte stream into events: one JSON object per line, with or without `data:` before it."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The events that `chunk` completes."""
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._partial.append(chunk)
            return []
        lines = [b"".join([*self._partial, head]), *rest.split(b"\n")]
        self._partial = [lines.pop()]
        return [event for line in lines if (event := _event(line)) is not None]

    def end(self) -> list[dict[str, Any]]:
        """The last event, when the stream ended without a line end after it."""
        line = b"".join(self._partial)
        self._partial = []
        if not line.strip():
            return []
        try:
            event = _event(line)
        except RuntimeFailure:  # cut in the middle: the missing end mark tells the rest of the story
            return []
        return [event] if event else []


class Ledger:
    """Which bytes of the command's output arrived.

    Offsets count both streams together. When a character of one stream is cut by output of the other, its
    first bytes come late, together with the rest of it: until then they are a hole before `end`.
    """

    def __init__(self) -> None:
        self.end = 0
        self._holes: dict[int, int] = {}

    def enter(self, offset: int, size: int) -> None:
        """`size` bytes arrived that the daemon places at `offset`."""
        if offset > self.end + _LONGEST_HOLE:
            raise RuntimeFailure(
                f"output is missing between byte {self.end} and byte {offset}", code=BAD_ANSWER
            )
        if offset > self.end:
            self._holes[self.end] = offset - self.end
            self.end = offset
        self.end += size - self._holes.pop(offset, 0)

    def unseen(self, start: int, data: bytes) -> bytes:
        """What of `data`, read from the log at `start`, did not arrive before; it counts as arrived now."""
        fresh = [data[max(hole - start, 0) : hole - start + size] for hole, size in self._holes.items()]
        fresh.append(data[max(self.end - start, 0) :])
        self._holes.clear()
        self.end = max(self.end, start + len(data))
        return b"".join(fresh)

    @property
    def resume(self) -> int:
        """From where on the log has what did not arrive."""
        return min([*self._holes, self.end])


class Assembly:
    """What is known of one command: its id, how far its output reaches, and its end once it came."""

    def __init__(self) -> None:
        self.command_id = ""
        self.ledger = Ledger()
        self.exit: Exit | None = None

    def accept(self, event: dict[str, Any]) -> Started | Output | None:
        """What an event means for the one who waits; nothing for keep-alives and the end."""
        kind = event.get("type")
        if kind == "stdout" or kind == "stderr":
            return self._output(kind, event)
        if kind == "init" and not self.command_id:
            self.command_id = str(event.get("text") or "")
            return Started(self.command_id)
        if kind == "error":
            self.exit = failure(event)
        elif kind == "execution_complete":
            self.exit = Exit(0, duration_ms=int(event.get("execution_time") or 0))
        return None

    def _output(self, stream: StreamName, event: dict[str, Any]) -> Output | None:
        data = payload(event)
        if "offset" in event:
            self.ledger.enter(int(event["offset"]), len(data))
        elif not data.endswith(b"\n"):
            data += b"\n"  # the line framing cuts it off; an empty line alone keeps it
        return Output(stream, data) if data else None


def failure(event: dict[str, Any]) -> Exit:
    """The Exit that an error event tells: a failed command, or one that could not be started."""
    error = event.get("error")
    fields = error if isinstance(error, dict) else {}
    value = str(fields.get("evalue") or "")
    code = int(value) if value.lstrip("-").isdigit() else None
    return Exit(
        exit_code=code,
        reason=str(event.get("reason") or ("start" if code is None else "exit")),
        signal=str(event.get("signal") or ""),
        error=value or "the daemon gave no reason" if code is None else "",
        duration_ms=int(event.get("execution_time") or 0),
    )


def payload(event: dict[str, Any]) -> bytes:
    """The bytes of an output event."""
    encoded = event.get("base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return str(event.get("text") or "").encode()


def _event(line: bytes) -> dict[str, Any] | None:
    text = line.strip()
    if text.startswith(b"data:"):
        text = text[5:].lstrip()
    if not text or text.startswith(b":"):
        return None
    try:
        event = json.loads(text)
    except ValueError as error:
        raise RuntimeFailure(f"not an event: {text[:120]!r}", code=BAD_ANSWER) from error
    if not isinstance(event, dict):
        raise RuntimeFailure(f"not an event: {text[:120]!r}", code=BAD_ANSWER)
    return event
