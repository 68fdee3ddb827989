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

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that the command wrote, in the order in which the daemon read them."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended.

    `exit_code` is None when it has none: it could not be started (`error` says why), or it runs in the
    background. `signal` names the signal that ended it, for example SIGKILL; the code is then 128 + number.
    """

    exit_code: int | None
    error: str = ""
    signal: str = ""
    timed_out: bool = False
    out_of_memory: bool = False
    duration_ms: int = 0


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


class Assembly:
    """What is known of one command's output: its id, how far it reaches, and its end once it came."""

    def __init__(self, *, raw: bool, offset: int = 0) -> None:
        self.command_id = ""
        self.offset = offset
        self.exit: Exit | None = None
        self._raw = raw

    def accept(self, event: dict[str, Any]) -> Output | None:
        """The new output in `event`, if any; what was seen before is left out."""
        kind = event.get("type")
        if kind == "stdout" or kind == "stderr":
            return self._output(kind, event)
        if kind == "init":
            self.command_id = self.command_id or str(event.get("text") or "")
        elif kind == "error":
            self.exit = failure(event)
        elif kind == "execution_complete":
            self.exit = Exit(0, duration_ms=int(event.get("execution_time") or 0))
        return None

    def _output(self, stream: StreamName, event: dict[str, Any]) -> Output | None:
        if not self._raw:
            text = str(event.get("text") or "")
            return Output(stream, (text if text.endswith("\n") else text + "\n").encode())
        data = payload(event)
        start = int(event.get("offset", self.offset))
        if start > self.offset:
            raise RuntimeFailure(
                f"output of command {self.command_id} is missing between byte {self.offset} and {start}",
                code=BAD_ANSWER,
            )
        fresh = data[self.offset - start :]
        self.offset += len(fresh)
        return Output(stream, fresh) if fresh else None


def failure(event: dict[str, Any]) -> Exit:
    """The Exit that an error event tells: a failed command, or one that could not be started."""
    error = event.get("error")
    fields = error if isinstance(error, dict) else {}
    value = str(fields.get("evalue") or "")
    code = int(value) if value.lstrip("-").isdigit() else None
    return Exit(
        exit_code=code,
        error="" if code is not None else value or "unknown error",
        signal=str(event.get("signal") or ""),
        timed_out=bool(event.get("timed_out")),
        out_of_memory=bool(event.get("oom")),
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
