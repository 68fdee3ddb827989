# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is known of a sandbox for finding out what went wrong: its entrypoint's output and its record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from casulo.api.wire import sandbox_body
from casulo.control.events import Event
from casulo.model.sandbox import Sandbox
from casulo.runtimes.base import KeepsOutput

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_MOST_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class Excerpt:
    """The end of a log; `truncated` when there was more before it."""

    text: str
    truncated: bool


async def entrypoint_log(data_dir: Path, runtime: object, sandbox_id: str, lines: int) -> Excerpt:
    """The last `lines` lines that the entrypoint wrote; empty when it wrote nothing.

    A runtime keeps them in the data directory, as `entrypoint.log` in the sandbox's own folder, or hands
    them out.
    """
    if not _SAFE_ID.fullmatch(sandbox_id):
        return Excerpt("", False)
    if isinstance(runtime, KeepsOutput):
        found = (await runtime.output(sandbox_id, lines + 1)).splitlines(keepends=True)
        return Excerpt("".join(found[-lines:]), len(found) > lines)
    return await asyncio.to_thread(_tail, data_dir, f"*/{sandbox_id}/entrypoint.log", lines)


def _tail(data_dir: Path, pattern: str, lines: int) -> Excerpt:
    try:
        with next(data_dir.glob(pattern)).open("rb") as log:
            size = log.seek(0, 2)
            start = log.seek(max(0, size - _MOST_BYTES))
            data = log.read(_MOST_BYTES)
    except (StopIteration, FileNotFoundError):
        return Excerpt("", False)
    found = data.splitlines(keepends=True)
    kept = found[-lines:]
    return Excerpt(b"".join(kept).decode(errors="replace"), start > 0 or len(kept) < len(found))


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
