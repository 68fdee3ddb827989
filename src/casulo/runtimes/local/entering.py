# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Starting a program that is in the control groups of a sandbox from its first instruction on.

Most ways into a group make the kernel hold up every process of the machine, and wait for a grace period
before that. A small program (`dataplane/compat/enter.c`) goes the ways that do not; where it was not built,
a shell goes the others, and leaves the entrances open for the program that it becomes.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from casulo.images import daemon
from casulo.runtimes.local.cgroups import Group, Layout
from casulo.runtimes.local.sealedcopy import SealedCopies

SEALED = SealedCopies()

# Each descriptor is an open `tasks` or `cgroup.procs`; 0 stands for who writes.
_BY_SHELL = 'for fd in $1; do echo 0 > "/proc/self/fd/$fd" || exit 125; done; shift; exec "$@"'


@dataclass(frozen=True)
class Doors:
    """The open entrances of one sandbox's groups.

    `files` are written to; `folder` is a v2 group, which `helper` makes the program begin in.
    """

    files: tuple[int, ...]
    folder: int = -1
    helper: int = -1

    def start(self, command: list[str], passed: Mapping[int, int]) -> int:
        """Start a program in the groups, with the namespaces and the folder of this thread; its process id.

        It gets the descriptors `passed` under their new numbers, and number 2 like 1. Whatever else this
        process has open closes by itself. (`subprocess` takes several times as long for the same.)
        """
        kept = (fd for fd in (*self.files, self.folder, self.helper) if fd >= 0)
        actions = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in passed.items()]
        actions += [(os.POSIX_SPAWN_DUP2, 1, 2), *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in kept)]
        words = self._words([shutil.which(command[0]) or command[0], *command[1:]])
        ignored = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)  # maybe, and so by whatever is started
        return os.posix_spawn(words[0], words, os.environ, file_actions=actions, setsigdef=ignored)

    def _words(self, command: list[str]) -> list[str]:
        files = [str(fd) for fd in self.files]
        if self.helper >= 0:
            return [f"/proc/self/fd/{self.helper}", str(self.folder), *files, "--", *command]
        return ["/bin/sh", "-c", _BY_SHELL, "sh", " ".join(files), *command]


@contextmanager
def doors(group: Group) -> Iterator[Doors]:
    """Open the entrances; they are closed at the end."""
    files, folder = group.own_entrances()
    helper = _helper() if folder else None
    if folder and helper is None:
        files, folder = [*files, folder / "cgroup.procs"], None
    with ExitStack() as stack:
        opened = tuple(_opened(stack, path, os.O_WRONLY) for path in files)
        if folder is None or helper is None:
            yield Doors(opened)
        else:
            yield Doors(opened, _opened(stack, folder, os.O_RDONLY | os.O_DIRECTORY), helper)


def holds_up(layout: Layout) -> bool:
    """Whether a start includes a move for which the kernel holds everybody up."""
    return layout.mode == "v2" or (layout.mode == "hybrid" and _helper() is None)


def _opened(stack: ExitStack, path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _helper() -> int | None:
    program = _program()
    return None if program is None else SEALED.of(program)


@functools.cache
def _program() -> Path | None:
    return daemon.entering_program(daemon.host_architecture())
