# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How each OCI runtime is called. Pure descriptions; `container` and `checkpoints` carry them out.

Every engine keeps what it started in a folder of its own, so that a later server, which may prefer
another one, still finds and removes what this one began.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from casulo.images.removal import remove_tree
from casulo.model.sandbox import Resources
from casulo.runtimes.local import seccomp

NAMES = ("crun", "runc", "runsc")
_RUNSC_MIDDLE = "_sandbox:"
"""Between the two names in the files of runsc's state, of which our containers have the same."""

GVISOR_TASKS = 16384
"""Host threads that a gVisor sandbox may use, whatever its limit inside. Its ptrace platform keeps a stub
for each process and each thread of its own that ever ran it: thousands for a hundred busy processes.
They count as the sandbox's memory; this only protects the host's process numbers."""


@dataclass(frozen=True)
class Engine:
    """One OCI runtime: its program, its state folder, and the options before its command."""

    name: str
    program: Path
    state: Path
    options: tuple[str, ...] = ()
    platform: str = ""
    needs_statx: bool = False

    @property
    def is_gvisor(self) -> bool:
        """Whether sandboxes get a kernel of their own, which knows neither our cgroups nor our seccomp."""
        return self.name == "runsc"

    @property
    def seals_itself(self) -> bool:
        """Whether it starts anew from a sealed copy of itself, unless it runs from one."""
        return self.name == "crun"

    @property
    def takes_filters(self) -> bool:
        """Whether it knows the annotation with a ready-made seccomp program."""
        return self.name == "crun" and _mentions(self.program, seccomp.PROGRAM_KEY)

    def on_host(self, resources: Resources) -> Resources:
        """The limits of everything on the host that a sandbox with these limits consists of."""
        if not self.is_gvisor:
            return resources
        return replace(resources, pids=GVISOR_TASKS)

    def run(self, sandbox_id: str, folder: Path, pid_file: Path) -> list[str]:
        """Start a container from the bundle in `folder` and return."""
        paths = ["--bundle", str(folder), "--pid-file", str(pid_file)]
        return [*self._call("run"), "--detach", *paths, sandbox_id]

    def checkpoint(self, sandbox_id: str, image: Path) -> list[str]:
        """Write the container's memory to `image`, which ends it."""
        return [*self._call("checkpoint"), "--image-path", str(image), sandbox_id]

    def signal(self, sandbox_id: str, name: str) -> list[str]:
        """Send a signal to process 1."""
        return [*self._call("kill"), sandbox_id, name]

    def restore(self, sandbox_id: str, folder: Path, pid_file: Path, image: Path) -> list[str]:
        """Like `run`, with the processes of `image`."""
        paths = ["--bundle", str(folder), "--pid-file", str(pid_file), "--image-path", str(image)]
        return [*self._call("restore"), "--detach", *paths, sandbox_id]

    def delete(self, sandbox_id: str) -> list[str]:
        """Forget a container whose processes are gone; empty where removing its files is all.

        It is with crun, too, since it made no cgroup; starting a program for it takes longer than the rest.
        """
        return [*self._call("delete"), "--force", sandbox_id] if self.name == "runc" else []

    def knows(self, sandbox_id: str) -> bool:
        """Whether it has state of this container."""
        return any(True for _ in self._traces(sandbox_id))

    def clear(self, sandbox_id: str) -> None:
        """Remove its files of a container whose processes are gone."""
        for path in list(self._traces(sandbox_id)):
            if self.is_gvisor:
                path.unlink(missing_ok=True)
            else:
                with contextlib.suppress(OSError):
                    remove_tree(path)

    def _traces(self, sandbox_id: str) -> Iterator[Path]:
        if self.is_gvisor:
            start = f"{sandbox_id}{_RUNSC_MIDDLE}"
            yield from (self.state / name for name in os.listdir(self.state) if name.startswith(start))
        elif os.path.lexists(place := f"{self.state}/{sandbox_id}"):
            yield Path(place)

    def _call(self, command: str) -> list[str]:
        # gVisor's file server becomes our child when runsc ends. A session of its own tells it from
        # processes that somebody here waits for.
        session = ("setsid", "--fork", "--wait") if self.is_gvisor else ()
        return [*session, str(self.program), "--root", str(self.state), *self.options, command]


def engine(program: Path, run: Path, platform: str = "", needs_statx: bool = False) -> Engine:
    """The engine that `program` is, with its state below the server's `run` folder."""
    options = _options(program.name, platform)
    return Engine(program.name, program, run / program.name, options, platform, needs_statx)


def _options(name: str, platform: str) -> tuple[str, ...]:
    if name == "crun":
        return ("--cgroup-manager=disabled",)
    if name == "runsc":
        chosen = (f"--platform={platform}",) if platform else ()
        return ("--ignore-cgroups", "--network=sandbox", *chosen)
    return ()


def known(run: Path) -> list[Engine]:
    """Engines, wanted or not, that may hold containers of this server."""
    found = [_program(name) for name in NAMES if os.path.isdir(f"{run}/{name}")]
    return [engine(Path(path), run) for path in found if path]


@functools.cache
def _program(name: str) -> str | None:
    """Asked at every removal, and the answer takes a look at each folder of PATH."""
    return shutil.which(name)


@functools.cache
def _mentions(program: Path, word: str) -> bool:
    return word.encode() in program.read_bytes()


def traces(run: Path) -> set[str]:
    """Ids of all containers in any engine's state folder."""
    ids: set[str] = set()
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError):
            ids |= {path.name.partition(_RUNSC_MIDDLE)[0] for path in (run / name).iterdir()}
    return ids
