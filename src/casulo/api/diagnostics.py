# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is known of a sandbox for finding out what went wrong: its entrypoint's output and its record."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from casulo.api.wire import sandbox_body
from casulo.control.events import Event
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Sandbox
from casulo.runtimes.base import KeepsOutput

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_MOST_BYTES = 2 * 1024 * 1024
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,9}[smhd])+")
_LONG_AGO = 100 * 365 * 86400


@dataclass(frozen=True)
class Excerpt:
    """The end of a log; `truncated` when there was more before it."""

    text: str
    truncated: bool


def moment_of(since: str, now: datetime) -> datetime:
    """The moment that `10m`, `1h30m` (ago) or `2026-01-31T12:00:00Z` means; InvalidRequest when none."""
    if _AGO.fullmatch(since):
        parts = re.findall(r"(\d+)([a-z])", since)
        return now - timedelta(seconds=min(sum(int(n) * _UNITS[unit] for n, unit in parts), _LONG_AGO))
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise InvalidRequest(
            f"since: {since!r} is no moment",
            code=Code.INVALID_PARAMETER,
            hint="write how long ago, such as 10m or 1h30m, or a time such as 2026-01-31T12:00:00Z",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def entrypoint_log(
    data_dir: Path, runtime: object, sandbox: Sandbox, lines: int, since: datetime | None = None
) -> Excerpt:
    """The last `lines` lines that the entrypoint wrote; empty when it wrote nothing.

    A runtime keeps them in the data directory, as `entrypoint.log` in the sandbox's own folder, or hands
    them out. Only one that hands them out knows when each was written; of the others, Unsupported when
    `since` lies between the first and the last.
    """
    if not _SAFE_ID.fullmatch(sandbox.id):
        return Excerpt("", False)
    if since is not None and since <= sandbox.created_at:
        since = None
    if isinstance(runtime, KeepsOutput):
        found = (await runtime.output(sandbox.id, lines + 1, since)).splitlines(keepends=True)
        return Excerpt("".join(found[-lines:]), len(found) > lines)
    return await asyncio.to_thread(_tail, data_dir, f"*/{sandbox.id}/entrypoint.log", lines, since)


def _tail(data_dir: Path, pattern: str, lines: int, since: datetime | None) -> Excerpt:
    try:
        with next(data_dir.glob(pattern)).open("rb") as log:
            if since is not None:
                _check_quiet_since(since, os.fstat(log.fileno()).st_mtime)
                return Excerpt("", False)
            size = log.seek(0, 2)
            start = log.seek(max(0, size - _MOST_BYTES))
            data = log.read(_MOST_BYTES)
    except (StopIteration, FileNotFoundError):
        return Excerpt("", False)
    found = data.splitlines(keepends=True)
    kept = found[-lines:]
    return Excerpt(b"".join(kept).decode(errors="replace"), start > 0 or len(kept) < len(found))


def _check_quiet_since(since: datetime, written: float) -> None:
    if written >= since.timestamp():
        raise Unsupported(
            f"since: this sandbox wrote before and after {since.isoformat(timespec='seconds')}, "
            "and its output is kept without times",
            code=Code.NOT_SUPPORTED,
            hint="ask for a number of lines with tail, or for a moment before the sandbox was made",
        )


def events_of(sandbox: Sandbox, turns: Sequence[Event] = ()) -> list[str]:
    """What the record says of the sandbox's life and what was seen of it, oldest first, one line each."""
    status = sandbox.status
    lines = [f"{sandbox.created_at:%Y-%m-%dT%H:%M:%SZ} Created image={sandbox.spec.image}"]
    lines += [_turn(event) for event in turns]
    lines.append(f"{status.since:%Y-%m-%dT%H:%M:%SZ} {status.state} {status.reason}: {status.message}")
    if sandbox.exit is not None:
        ended = sandbox.exit
        how = f"signal={ended.signal}" if ended.signal else f"code={ended.code}"
        lines.append(f"{status.since:%Y-%m-%dT%H:%M:%SZ} EntrypointExited {how} oom={str(ended.oom).lower()}")
    return lines


def _turn(event: Event) -> str:
    took = " ".join(f"{stage}={1000 * seconds:.1f}ms" for stage, seconds in event.stages.items())
    return f"{event.at:%Y-%m-%dT%H:%M:%SZ} {event.kind} {event.reason} {took}".rstrip()


def inspection(sandbox: Sandbox) -> str:
    """The whole record as JSON, without environment values and tokens."""
    spec, resources = sandbox.spec, sandbox.spec.resources
    body = sandbox_body(sandbox).model_dump_json(exclude_none=True, indent=2)
    facts = [
        f"runtime: {sandbox.runtime or 'none yet'}",
        f"isolation: {spec.isolation}",
        f"cpu: {resources.cpu_millis}m",
        f"memory: {resources.memory_bytes} bytes",
        f"pids: {resources.pids}",
        f"shm: {resources.shm_bytes} bytes",
        f"environment names: {', '.join(sorted(spec.env)) or 'none'}",
    ]
    return "\n".join([body, *facts])
