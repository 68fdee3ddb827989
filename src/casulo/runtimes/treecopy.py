# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Copying a tree of files that nobody writes to meanwhile, exactly, and with a way to stop half-way.

GNU cp does it: owners, modes, times, hard links, extended attributes of every namespace, devices
(overlayfs marks deleted files with them), holes, and blocks shared where the file system can. It
never follows a link that it finds.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from casulo.model.errors import Code, RuntimeFailure

_COPY = (
    "setpriv", "--pdeathsig", "KILL",  # or it would go on after a server that was killed
    "cp", "--recursive", "--no-dereference", "--preserve=mode,ownership,timestamps,links,xattr",
    "--reflink=auto", "--sparse=auto", "--no-target-directory", "--",
)  # fmt: skip


class TreeCopy:
    """One copy. `wrapper` is a command before the command, such as one that enters a namespace."""

    def __init__(self, source: Path, target: Path, wrapper: Sequence[str] = ()) -> None:
        self._command = [*wrapper, *_COPY, str(source), str(target)]
        self._ends = (str(source), str(target))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        """Copy; blocking. RuntimeFailure says what could not be copied, and leaves what was."""
        with self._lock:
            if self._stopped:
                return
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        _, said = self._process.communicate()
        if self._process.returncode != 0 and not self._stopped:
            raise RuntimeFailure(
                f"the files could not be copied: {self._told(said)}",
                code=Code.SNAPSHOT_CREATE_FAILED,
                hint="look for a full disk, or a file system without extended attributes",
            )

    def _told(self, said: str) -> str:
        """cp's first complaint, without what only the host knows, and short whatever names it holds."""
        line = said.strip().partition("\n")[0] or "cp was killed"
        for end in self._ends:
            line = line.replace(end, "")
        return line if len(line) < 200 else f"{line[:90]} … {line[-100:]}"

    def stop(self) -> None:
        """End it, from another thread; `run` then returns soon, with less than a whole copy."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()
