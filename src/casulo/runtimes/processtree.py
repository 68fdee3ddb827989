# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A process and all its descendants, stopped, continued or killed as one, without a control group.

This needs the root to be a subreaper, as the execution daemon is: then orphans stay in the tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from pathlib import Path


def stop(root: int) -> None:
    """SIGSTOP until a look finds nobody new; a stopped process cannot have more children."""
    stopped: set[int] = set()
    while new := members(root) - stopped:
        _signal(new, signal.SIGSTOP)
        stopped |= new


def resume(root: int) -> None:
    """Undo `stop`."""
    _signal(members(root), signal.SIGCONT)


def kill(root: int) -> None:
    """End everything. Stopping first keeps anyone from escaping between the look and the kill."""
    stop(root)
    _signal(members(root), signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal."""
    stat = _stat(pid)
    return stat is not None and stat[0] == "T"


def members(root: int) -> set[int]:
    """The root and its descendants that are not zombies, as one look at the process table shows them."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None and stat[0] not in "ZX":
            children[stat[1]].append(int(entry.name))
    found, waiting = set(), [root] if _stat(root) else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting.extend(children[pid])
    return found


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, parent) of a process, None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
