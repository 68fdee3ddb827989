# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The audit log: who asked this server for which change, and what came of it.

One JSON object a line. Each holds the hash of the one before and its own, so that a line that was
changed, removed or put in later shows. What the chain cannot show is that its end was cut off; who
needs that keeps the last hash elsewhere. Refused calls are recorded too, and secrets never.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
START = "0" * 64
"""What stands for the hash before the first line."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking a log: how many lines are whole, and what is wrong with the next one."""

    lines: int
    last_hash: str
    fault: str = ""


class AuditLog:
    """Appends lines; one write each, so that a killed server leaves whole lines or one torn end."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._serial, self._last = self._resume(path)

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)

    def write(self, entry: dict[str, Any]) -> None:
        """Record one call."""
        self._serial += 1
        body = {"serial": self._serial, "at": datetime.now(UTC).isoformat(), **entry, "before": self._last}
        self._last = _hash(body)
        os.write(self._file, _line({**body, "hash": self._last}))

    def _resume(self, path: Path) -> tuple[int, str]:
        """Serial and hash of the last whole line; a torn one was never a record and is cut off."""
        whole = path.read_bytes().rpartition(b"\n")[0]
        os.ftruncate(self._file, len(whole) + 1 if whole else 0)
        if not whole:
            return 0, START
        last = json.loads(whole.rpartition(b"\n")[2])
        return int(last["serial"]), str(last["hash"])


def verify(path: Path) -> Verdict:
    """Walk the chain from the first line to the last."""
    lines, last = 0, START
    for number, text in _lines(path):
        fault = _fault(text, number, last)
        if fault:
            return Verdict(lines, last, f"line {number}: {fault}")
        lines, last = number, json.loads(text)["hash"]
    return Verdict(lines, last)


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
