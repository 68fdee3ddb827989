# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Starting and removing one container with an OCI runtime. Blocking; call from worker threads.

The root file system is put together in a mount namespace of its own, which only the OCI runtime
inherits: nothing is mounted on the host that a crash could leave behind, and the mounts end with
the container's last process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from casulo import linux
from casulo.images.removal import remove_tree
from casulo.model.errors import Code, RuntimeFailure, TimedOut
from casulo.runtimes.local import engines, entering, graceperiods, gvisor, mounting, rootless
from casulo.runtimes.local.bundle import Bundle
from casulo.runtimes.local.cgroups import Group
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.entering import SEALED, Doors
from casulo.runtimes.local.host import Host
from casulo.runtimes.local.mounting import VolumeMount


@dataclass(frozen=True)
class Folder:
    """The directory of one sandbox below the data directory."""

    path: Path

    @property
    def upper(self) -> Path:
        """What the sandbox wrote: the writable overlay layer."""
        return self.path / "upper"

    @property
    def work(self) -> Path:
        """Overlay's scratch directory."""
        return self.path / "work"

    @property
    def isolated(self) -> Path:
        """Where the daemon keeps what isolated sessions write over the sandbox's own files."""
        return self.path / "isolated"

    @property
    def events(self) -> Path:
        """Lines that the daemon appends: how the entrypoint ended."""
        return self.path / "events.jsonl"

    @property
    def entrypoint_log(self) -> Path:
        """The entrypoint's output, capped."""
        return self.path / "entrypoint.log"

    @property
    def daemon_log(self) -> Path:
        """Messages of the OCI runtime and the daemon."""
        return self.path / "daemon.log"

    @property
    def slot(self) -> Path:
        """Number of the network slot, written before it is used."""
        return self.path / "slot"

    @property
    def policy(self) -> Path:
        """The network policy, for a server that starts after this one; absent without a policy."""
        return self.path / "policy.json"

    @property
    def socket(self) -> Path:
        """Where the daemon listens when the sandbox has no network of its own."""
        return self.path / "socket" / "execd"

    @property
    def process(self) -> Path:
        """Which process it is now, where that is no longer the one that it was started as."""
        return self.path / "process"

    @property
    def limits(self) -> Path:
        """The limits of a sandbox that may be put on disk, where it outlives its groups."""
        return self.path / "limits.json"

    @property
    def goes_to_disk(self) -> Path:
        """There when a pause puts the sandbox on disk."""
        return self.path / "goes-to-disk"

    @property
    def pausing(self) -> Path:
        """There while the sandbox goes to disk or comes from there, and locked by whoever is at it."""
        return self.path / "pausing"

    @property
    def memory(self) -> Path:
        """The sandbox's processes, where it is on disk."""
        return self.path / "memory"

    @property
    def memory_draft(self) -> Path:
        """The same, while it is being written."""
        return self.path / "memory.new"

    @property
    def mark(self) -> Path:
        """How long `events` was when the processes were written down."""
        return self.memory / "mark"

    def note_process(self, pid: int, started: int) -> None:
        """Which process it is now, in place of the one before."""
        fresh = self.process.with_suffix(".new")
        fresh.write_text(json.dumps({"pid": pid, "started": started}))
        fresh.rename(self.process)

    def noted_process(self) -> tuple[int, int] | None:
        """What `note_process` wrote, if it did."""
        try:
            told = json.loads(linux.read_file(self.process))
        except FileNotFoundError:
            return None
        return int(told["pid"]), int(told["started"])

    @property
    def pid(self) -> Path:
        """Process id of the daemon on the host, written by the OCI runtime."""
        return self.path / "pid"

    def create(self, owner: int) -> None:
        """Make the directories; `owner` is the host uid of the sandbox's root."""
        self.path.mkdir(mode=0o700, parents=True)
        self.upper.mkdir()
        self.work.mkdir()
        os.chown(self.upper, owner, owner)

    def link_layers(self, layers: Sequence[Path]) -> None:
        """Give the layers, lowest first, short names: the kernel takes one page of them altogether."""
        lower = self.path / "lower"
        lower.mkdir()
        for height, layer in enumerate(layers):
            (lower / str(height)).symlink_to(os.path.relpath(layer, lower))

    def layers(self) -> list[str]:
        """The short names, topmost first, relative to this folder."""
        return [f"lower/{height}" for height in reversed(range(len(os.listdir(self.path / "lower"))))]

    def create_isolated(self, owner: int) -> None:
        """Make the directory of isolated sessions, closed to all but the sandbox's root."""
        self.isolated.mkdir(mode=0o700)
        os.chown(self.isolated, owner, owner)

    def remove(self) -> None:
        """Delete everything below. Idempotent."""
        try:
            remove_tree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RuntimeFailure(f"remove {error.filename}: {error.strerror}") from error


@dataclass(frozen=True)
class Container:
    """One container about to be started: its plan, and what the plan is put together from.

    Without a bundle the plan is the one in the folder. With `memory` its processes are those that a
    checkpoint left there.
    """

    host: Host
    engine: Engine
    bundle: Bundle | None
    group: Group
    folder: Folder
    daemon: Path
    volumes: tuple[VolumeMount, ...] = ()
    memory: Path | None = None

    def start(self, boot: socket.socket, timeout: float) -> int:
        """Start with `boot` as the daemon's standard input; its process id on the host.

        Returns when the OCI runtime is done; the daemon may still be on its way. Raises
        RuntimeFailure with the OCI runtime's words.
        """
        if self.bundle:
            binds = (*self.bundle.binds, *mounting.binds(self.host.run, self.volumes))
            config = replace(self.bundle, binds=binds).config()
            (self.folder.path / "config.json").write_text(json.dumps(config))
        with contextlib.ExitStack() as stack:
            doors = stack.enter_context(entering.doors(self.group))
            log = stack.enter_context(self.folder.daemon_log.open("ab"))
            passed = {boot.fileno(): 0, log.fileno(): 1}
            if self.engine.is_gvisor:
                passed |= {more: more for more in stack.enter_context(graceperiods.roomy_tables())}
            pid = linux.in_own_thread(lambda: self._launch(passed, doors))
        _await(pid, self.engine, self.folder, timeout)
        return int(linux.read_file(self.folder.pid))

    def _launch(self, passed: dict[int, int], doors: Doors) -> int:
        names = (self.folder.path.name, self.folder.path, self.folder.pid)
        inner = self.engine.restore(*names, self.memory) if self.memory else self.engine.run(*names)
        if self.host.rootless:
            inner = self._wrapped([*mounting.command(self.volumes, self.host.run), *inner])
            linux.unshare(linux.CLONE_FS)
            os.chdir(self.folder.path)
        else:
            self._assemble()
        if self.engine.seals_itself and (sealed := SEALED.of(self.engine.program)) is not None:
            inner[inner.index(str(self.engine.program))] = f"/proc/self/fd/{sealed}"
            passed = {**passed, sealed: sealed}
        return doors.start(inner, passed)

    def _assemble(self) -> None:
        host = self.host
        linux.private_mounts()
        if host.hidden and self.engine.name == "crun":
            linux.bind(str(host.run / "hidden"), str(host.hidden))
        mounting.mount_all(self.volumes, host.run, host.user_namespace)
        if self.engine.is_gvisor:
            gvisor.hide_default_sizes(host.run / "proc", host.run / "hidden")
            if self.engine.platform != "kvm":  # which needs the call for itself
                graceperiods.refuse_membarrier()
        # The daemon may be installed where the sandbox's users cannot go, such as below /root.
        linux.bind(str(self.daemon), str(host.run / "execd"))
        os.chdir(self.folder.path)
        flags = linux.MS_NODEV | linux.MS_NOSUID
        linux.mount("overlay", str(host.run / "rootfs"), "overlay", flags, self._layers)

    def _wrapped(self, command: list[str]) -> list[str]:
        """The same assembly, done by a shell in a user namespace, where an ordinary user may mount."""
        run = self.host.run
        over = self.host.hidden or ""
        places = [run / "hidden", over, self.daemon, run / "execd", run / "rootfs", self._layers]
        script = ["sh", "-c", rootless.SCRIPT, "sh", *map(str, places)]
        return [*rootless.WRAPPER, *script, *command]

    @property
    def _layers(self) -> str:
        """Relative to the sandbox's folder, since /proc/mounts shows these words inside."""
        lower = ":".join(self.folder.layers())
        # Both features trust marks in the layers, which an image may have forged. Without root they
        # are off anyway, and may not even be named.
        untrusting = "" if self.host.rootless else ",redirect_dir=off,metacopy=off"
        return f"lowerdir={lower},upperdir=upper,workdir=work{untrusting}"


def _await(pid: int, engine: Engine, folder: Folder, timeout: float) -> None:
    try:
        code = _waited(pid, timeout)
    except TimeoutError as error:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise TimedOut(
            f"{engine.name} did not start the container within {timeout:g} s",
            code=Code.SANDBOX_START_TIMEOUT,
            hint="the machine may be overloaded; try again or raise [sandbox] start_timeout_seconds",
        ) from error
    if code != 0:
        words = folder.daemon_log.read_text(errors="replace").strip()[-2000:]
        raise RuntimeFailure(
            f"{engine.name} could not start the container: {words or f'exit code {code}'}",
            code=Code.SANDBOX_START_FAILED,
            hint="`osb doctor` shows what this host lacks",
        )


def _waited(pid: int, timeout: float) -> int:
    """Its exit code as soon as it has one; negative, the number of the signal that ended it."""
    descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(timeout * 1000):
            raise TimeoutError
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forget(host: Host, sandbox_id: str) -> None:
    """Make whichever engine began it drop a container whose processes are gone. Idempotent."""
    for engine in engines.known(host.run):
        if engine.knows(sandbox_id):
            _forget(engine, sandbox_id)


def _forget(engine: Engine, sandbox_id: str) -> None:
    words = ""
    if command := engine.delete(sandbox_id):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, errors="replace"
        )
        words = done.stderr.strip()
    engine.clear(sandbox_id)
    if engine.knows(sandbox_id):
        raise RuntimeFailure(f"{engine.name} delete: {words}")
