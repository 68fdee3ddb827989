# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A runtime without isolation: the real daemon as a plain process of this machine, for tests.

It keeps the whole runtime protocol, restarts included, in milliseconds and without privileges. What
runs in it can do whatever the server can, so it works only where a configuration names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from casulo import linux
from casulo.images import daemon
from casulo.model.credentials import Credentials
from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import Code, RuntimeFailure, TimedOut, Unsupported
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Exit, Handle, Isolation, Spec
from casulo.runtimes import bootchannel, endings, parked, processtree
from casulo.runtimes.base import Capabilities, Deaf, Egress, ExitListener, Reality, Snapshots
from casulo.runtimes.fakesnapshots import FakeSnapshots, to_its_end
from casulo.runtimes.local import watch
from casulo.runtimes.local.stopping import read_exit

_END_SECONDS = 10.0
_REAP_SECONDS = 0.5
_ANSWER_SECONDS = 3.0
_log = structlog.get_logger(__name__)


class FakeRuntime:
    """Runs sandboxes as process trees below `data`/fake, each with a folder of its own."""

    name = "fake"

    def __init__(self, data: Path, start_timeout_seconds: float = 30, execd: Path | None = None) -> None:
        self._folders = data / "fake"
        self._start_timeout = start_timeout_seconds
        self._execd = execd
        self._watch = watch.Watch(self._ended)
        self.pause: FakePause | None = FakePause()
        self.parking = FakeParking(self)
        self._kept = FakeSnapshots(data / "fake-snapshots", lambda name: Folder(self._folders / name).home)
        self.snapshots: Snapshots | None = self._kept
        self.egress: Egress | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Nothing is isolated, and no limit holds."""
        return Capabilities(
            isolations=frozenset({Isolation.AUTO}),
            features=frozenset({"pause", "snapshot"}),
            missing={"isolation.container": "the fake runtime isolates nothing; enable the local runtime"},
        )

    async def open(self, on_exit: ExitListener) -> None:
        """Find the daemon and the folders."""
        self._on_exit = on_exit
        if self._execd is None:
            self._execd = daemon.execd_binary(daemon.host_architecture())
        self._folders.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._kept.prepare()
        _log.warning("fake_runtime.no_isolation", note="sandboxes run as plain processes of this machine")

    async def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    def check(self, spec: Spec) -> None:
        """Refuse all images but this machine itself, and other machines' platforms."""
        here = daemon.host_architecture()
        if spec.image != HOST_IMAGE:
            raise Unsupported(
                f"the fake runtime has no image {spec.image!r}",
                code=Code.IMAGE_UNSUPPORTED,
                hint=f"use the image {HOST_IMAGE!r}",
            )
        if spec.platform and spec.platform.arch != here:
            raise Unsupported(
                f"this machine is linux/{here}, not {spec.platform.os}/{spec.platform.arch}",
                code=Code.IMAGE_UNSUPPORTED,
                hint="leave the platform out",
            )

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Nothing: this machine is here."""

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        """Start a daemon with its entrypoint."""
        try:
            return await self.finish(sandbox_id, await self._launch(sandbox_id, spec), spec)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise

    async def begin(self, sandbox_id: str, spec: Spec) -> Waiting:
        """Start a daemon and leave it waiting; an error leaves nothing behind."""
        try:
            return await self._launch(sandbox_id, spec)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise

    async def _launch(self, sandbox_id: str, spec: Spec) -> Waiting:
        folder = Folder(self._folders / sandbox_id)
        ours, theirs = bootchannel.socket_pair()
        try:
            with theirs:
                pid, started = await to_its_end(functools.partial(self._spawn, folder, spec, theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        return Waiting(pid, started, ours)

    async def finish(
        self, sandbox_id: str, waiting: Waiting, spec: Spec, timeout: float | None = None
    ) -> Handle:
        """Tell the daemon what to be, and watch it from then on."""
        folder, token = Folder(self._folders / sandbox_id), secrets.token_urlsafe(24)
        with ExitStack() as stack:
            channel = stack.enter_context(waiting.channel)
            stack.enter_context(bootchannel.told_with(folder.daemon_log))
            document = _document(folder, sandbox_id, spec, token)
            limit = bootchannel.start_limit(timeout or self._start_timeout, spec)
            ready = await bootchannel.handshake(channel, document, folder.descriptors(stack), limit)
        host, port = _address(ready)
        if not self._watch.add(sandbox_id, waiting.pid, waiting.started):
            asyncio.get_running_loop().call_soon(self._ended, sandbox_id)
        return Handle(host, port, token, {"pid": waiting.pid, "started": waiting.started})

    def _spawn(self, folder: Folder, spec: Spec, boot_fd: int) -> tuple[int, int]:
        """A process that waits for its boot message, already noted on disk.

        Should the server die before the note, the daemon sees the channel close and ends by itself.
        """
        folder.create()
        if spec.snapshot_id:
            self._kept.restore(spec.snapshot_id, folder.home)
        with folder.daemon_log.open("ab") as log:
            process = subprocess.Popen(
                [str(self._execd), "--boot-fd", "0"],
                stdin=boot_fd,
                stdout=log,
                stderr=log,
                env={},
                cwd="/",
                start_new_session=True,
            )
        process.returncode = 0  # it is watched and reaped by its descriptor, not by this object
        started = linux.start_time(process.pid)
        if started is None:
            raise RuntimeFailure("the daemon ended at once", code=Code.SANDBOX_START_FAILED)
        folder.note(process.pid, started)
        return process.pid, started

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop the tree and remove the folder."""
        self._watch.drop(sandbox_id)
        self.parking.forget(sandbox_id)
        folder = Folder(self._folders / sandbox_id)
        return await asyncio.to_thread(_destroy, folder, handle, grace_seconds)

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        """Look at the daemon's process, and watch it from now on."""
        pid, started = _process_of(handle)
        if self._watch.add(sandbox_id, pid, started):
            return Reality(alive=True, frozen=processtree.is_stopped(pid))
        return Reality(alive=False, exit=read_exit(Folder(self._folders / sandbox_id).events))

    async def list(self) -> set[str]:
        """Ids with a folder."""
        return {folder.name for folder in self._folders.iterdir()}

    def _ended(self, sandbox_id: str) -> None:
        self._on_exit(sandbox_id, read_exit(Folder(self._folders / sandbox_id).events))


@dataclass(frozen=True)
class Waiting:
    """A daemon's process that waits for its boot message."""

    pid: int
    started: int
    channel: socket.socket


class FakeParking:
    """Keeps the open ends of boot channels, as the local runtime does."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._waiting: dict[str, Waiting] = {}

    def can(self, spec: Spec) -> bool:
        """Always."""
        return True

    async def park(self, sandbox_id: str, spec: Spec) -> None:
        """Start a daemon that waits."""
        self._waiting[sandbox_id] = await self._runtime.begin(sandbox_id, spec)

    async def adopt(self, sandbox_id: str, spec: Spec) -> Handle:
        """Tell it what to be."""
        waiting = self._waiting.pop(sandbox_id, None)
        if waiting is None:
            raise Deaf(f"{sandbox_id} is not parked any more")
        try:
            return await self._runtime.finish(sandbox_id, waiting, spec, _ANSWER_SECONDS)
        except (bootchannel.Silent, TimedOut) as error:
            raise Deaf(f"{sandbox_id} did not answer: {error.message}") from error

    def ready(self, sandbox_id: str) -> bool:
        """Its process is there and not stopped, and has not hung up."""
        waiting = self._waiting.get(sandbox_id)
        return waiting is not None and parked.ready(waiting.pid, waiting.started, waiting.channel)

    def forget(self, sandbox_id: str) -> None:
        """Hang up. Idempotent."""
        if waiting := self._waiting.pop(sandbox_id, None):
            waiting.channel.close()


class FakePause:
    """Freezing by signal. The processes can see it, which a real freezer avoids."""

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Stop every process of the tree."""
        await to_its_end(functools.partial(processtree.stop, _process_of(handle)[0]))

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Continue every process of the tree."""
        await to_its_end(functools.partial(processtree.resume, _process_of(handle)[0]))


class Folder:
    """What one sandbox has on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events"
        self.entrypoint_log = path / "entrypoint.log"
        self.daemon_log = path / "daemon.log"
        self.home = path / "home"
        self.envs = path / "envs"
        self._process = path / "process"

    def create(self) -> None:
        """Make it; what an earlier attempt left is gone before."""
        self.path.mkdir(mode=0o700)
        self.home.mkdir()

    def note(self, pid: int, started: int) -> None:
        """Remember the daemon's process."""
        self._process.write_text(f"{pid} {started}")

    def process(self) -> tuple[int, int] | None:
        """The remembered process; None when there was none, or the note was cut short."""
        try:
            pid, started = self._process.read_text().split()
            return int(pid), int(started)
        except (FileNotFoundError, ValueError):
            return None

    def descriptors(self, stack: ExitStack) -> dict[str, int]:
        """What the daemon gets to write to; closed with `stack`."""
        opened = {
            "events": os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600),
            "log": os.open(self.entrypoint_log, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600),
        }
        for descriptor in opened.values():
            stack.callback(os.close, descriptor)
        return opened


def _document(folder: Folder, sandbox_id: str, spec: Spec, token: str) -> bootchannel.BootDocument:
    envs = str(folder.envs)
    return bootchannel.BootDocument(
        sandbox_id=sandbox_id,
        access_token=token,
        entrypoint=spec.entrypoint or DEFAULT_ENTRYPOINT,
        env=bootchannel.environment(sandbox_id, spec, home=str(folder.home), envs_file=envs),
        listen=("tcp://127.0.0.1:0",),
        uid=os.getuid(),
        gid=os.getgid(),
        envs_file=envs,
        pre_start=spec.pre_start,
        periodic=spec.periodic,
    )


def _address(ready: bootchannel.Ready) -> tuple[str, int]:
    for address in ready.listen:
        if address.startswith("tcp://"):
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            return host, int(port)
    raise RuntimeFailure("the daemon listens nowhere", code=Code.SANDBOX_START_FAILED)


def _destroy(folder: Folder, handle: Handle | None, grace_seconds: float) -> Exit | None:
    process = folder.process() or (_process_of(handle) if handle else None)
    if process:
        if handle and grace_seconds > 0 and linux.start_time(process[0]) == process[1]:
            _ask(handle, process, grace_seconds)
        _end(*process)
    ended = read_exit(folder.events)
    shutil.rmtree(folder.path, ignore_errors=True)
    if folder.path.exists():
        raise RuntimeFailure(f"the folder {folder.path} cannot be removed")
    return ended


def _ask(handle: Handle, process: tuple[int, int], grace_seconds: float) -> None:
    """Give the entrypoint its time; a daemon that cannot be asked is killed with the rest."""
    processtree.resume(process[0])
    try:
        endings.ask(handle, grace_seconds)
    except OSError as error:
        _log.info("fake_runtime.not_asked", port=handle.port, error=str(error))
        return
    watch.await_end(*process, grace_seconds + endings.ASK_TIMEOUT_SECONDS)


def _end(pid: int, started: int) -> None:
    if linux.start_time(pid) == started:
        processtree.kill(pid)
    if not watch.await_end(pid, started, _END_SECONDS):
        raise RuntimeFailure(f"process {pid} does not end", code=Code.SANDBOX_DELETE_FAILED)
    _reap(pid)


def _reap(pid: int) -> None:
    """It may have ended unseen, as a child of ours. Until its last thread is gone it cannot be reaped."""
    deadline = time.monotonic() + _REAP_SECONDS  # the number may be another child's by now
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.002)


def _process_of(handle: Handle) -> tuple[int, int]:
    return int(handle.data["pid"]), int(handle.data["started"])
