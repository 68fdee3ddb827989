# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The audit log: who asked this server for which change, and what came of it.

One JSON object a line. Each holds the hash of the one before and its own, so that a line that was
changed, removed or put in later shows. What the chain cannot show is that its end was cut off; who
needs that keeps the last hash elsewhere. Refused calls are recorded too, and secrets never.

A file that has grown to its size is set aside under the serial of its last record, and the chain goes on
in a new one. Files set aside are kept, unless a number of them was asked for.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
_ASIDE = "audit-{:012d}.jsonl"
_MANY_BYTES = 64 * 1024 * 1024
START = "0" * 64
"""What stands for the hash before the first line."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking a log: how many lines are whole, and what is wrong with the next one."""

    lines: int
    last_hash: str
    fault: str = ""
    first: int = 1
    """Serial of the first record that is there: more than 1 where older files were removed."""

    lost: int = 0
    """How many calls could not be recorded, as the records after them say."""


class AuditLog:
    """Appends lines; one write each, so that a killed server leaves whole lines or one torn end."""

    def __init__(self, path: Path, max_bytes: int = _MANY_BYTES, keep: int | None = None) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file = _opened(path)
        self._serial, self._last = self._resume(path)
        self._lost = 0

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)

    def write(self, entry: dict[str, Any]) -> None:
        """Record one call. OSError leaves the chain whole; the next record says how many are not there."""
        gap = {"lost": self._lost} if self._lost else {}
        moment = datetime.now(UTC).isoformat()
        body = {"serial": self._serial + 1, "at": moment, **entry, **gap, "before": self._last}
        digest = _hash(body)
        try:
            self._append(_line({**body, "hash": digest}))
        except OSError:
            self._lost += 1
            raise
        self._serial, self._last, self._lost = self._serial + 1, digest, 0
        if os.fstat(self._file).st_size >= self._max_bytes:
            self._set_aside()

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, "the disk took a part of the record only")
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _set_aside(self) -> None:
        """A crash in between leaves no file here, which is as good as an empty one."""
        draft = self._path.with_suffix(".new")
        fresh = _opened(draft)  # first, so that a full disk changes nothing
        self._path.rename(self._path.with_name(_ASIDE.format(self._serial)))
        draft.rename(self._path)
        os.close(self._file)
        self._file = fresh
        if self._keep is not None:
            kept = set_aside(self._path)
            for path in kept[: max(0, len(kept) - self._keep)]:
                path.unlink(missing_ok=True)

    def _resume(self, path: Path) -> tuple[int, str]:
        """Serial and hash of the last whole line; a torn one was never a record and is cut off."""
        whole = path.read_bytes().rpartition(b"\n")[0]
        os.ftruncate(self._file, len(whole) + 1 if whole else 0)
        if not whole and (aside := set_aside(path)):
            whole = aside[-1].read_bytes().rstrip(b"\n")
        if not whole:
            return 0, START
        last = json.loads(whole.rpartition(b"\n")[2])
        return int(last["serial"]), str(last["hash"])


def set_aside(path: Path) -> list[Path]:
    """The older files of the log at `path`, in their order."""
    return sorted(path.parent.glob("audit-*.jsonl")) if path.name == FILE else []


def verify(path: Path) -> Verdict:
    """Walk the chain from the first line to the last, through every file of the log."""
    lines, first, last, lost = 0, 1, START, 0
    for file in (*set_aside(path), path):
        for number, text in _lines(file):
            if lines == 0:
                first, last = _begins(text)
            fault = _fault(text, first + lines, last)
            if fault:
                where = f"line {number}" if file == path else f"{file.name}, line {number}"
                return Verdict(lines, last, f"{where}: {fault}", first)
            entry = json.loads(text)
            lines, last, lost = lines + 1, entry["hash"], lost + int(entry.get("lost", 0))
    return Verdict(lines, last, first=first, lost=lost)


def _begins(text: bytes) -> tuple[int, str]:
    """Serial of the first record that is there, and the hash that it names as the one before it."""
    try:
        entry = json.loads(text)
        serial, before = int(entry["serial"]), str(entry["before"])
    except (ValueError, KeyError, TypeError):
        return 1, START
    return (serial, before) if serial > 1 else (1, START)


def _opened(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _fault(text: bytes, number: int, before: str) -> str:
    try:
        entry = json.loads(text)
        found = entry.pop("hash")
    except (ValueError, KeyError, AttributeError):
        return "is no record"
    if entry.get("serial") != number:
        return f"has the serial {entry.get('serial')}: a record is missing or out of place"
    if entry.get("before") != before:
        return "does not follow the record before it"
    return "" if _hash(entry) == found else "was changed after it was written"


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(_line(body)).hexdigest()


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
