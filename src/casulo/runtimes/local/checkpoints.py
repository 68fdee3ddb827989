# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Putting gVisor sandboxes on disk, with their memory, and letting them go on from there. Blocking.

A checkpoint ends gVisor's processes. The sandbox is then continued in the place where it was: same folder,
groups, address and token, other processes. Whatever is killed in between, its folder says what holds:

    pausing       somebody is at it: locked by whoever is, the program that writes included
    memory.new/   a checkpoint that is not complete
    memory/       one that is: the sandbox is on disk, unless it has gone on since
    memory/mark   how long the daemon's list of events was then; it adds a line when it goes on
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from casulo.images.removal import remove_tree
from casulo.images.rooted import sync_file_system
from casulo.model.errors import Code, Conflict, RuntimeFailure, Unavailable
from casulo.model.sandbox import Handle
from casulo.runtimes.local import watch
from casulo.runtimes.local.cgroups import Group
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.starting import Starter

_SUSPEND_SECONDS = 20.0
_CHECKPOINT_SECONDS = 120.0
_END_SECONDS = 30.0
_SETTLE_SECONDS = 5.0
"""How long what a killed server began may take to come to its end."""

IMAGE = "checkpoint.img"
"""The file that runsc writes into the folder that it is given."""

# The name says that the file is whole, also where nobody is left to see how the program ended.
_THEN_RENAME = 'draft=$1 whole=$2; shift 2; "$@" && mv -T "$draft" "$whole"'


def put_down(folder: Folder, engine: Engine, group: Group, handle: Handle) -> None:
    """End the sandbox's processes and keep their memory in its folder, from which `pick_up` continues.

    Conflict, and nothing happened, where its processes hold TCP connections; Unavailable where the disk
    is too full. A checkpoint that fails ends the sandbox: gVisor does not go on after it.
    """
    with _claim(folder) as claim:
        _require_room(folder, group)
        _suspend(handle)
        _write_down(folder, engine, handle, claim)


def pick_up(folder: Folder, engine: Engine, group: Group, starter: Starter, handle: Handle) -> None:
    """Continue the sandbox. On an error it is on disk as before, unless its processes went on already."""
    with _claim(folder):
        try:
            starter.again(folder, engine, handle, folder.memory)
        except BaseException:
            group.kill()
            _await_end(folder, handle)
            engine.clear(folder.path.name)
            if _went_on(folder):
                remove_tree(folder.memory)
            raise
        remove_tree(folder.memory)


def is_unsettled(folder: Folder) -> bool:
    """Whether only `settle` can tell where the sandbox is."""
    return folder.pausing.exists() or folder.memory.exists()


def settle(folder: Folder, engine: Engine, group: Group, handle: Handle) -> bool:
    """Finish what a killed server began; whether the sandbox is on disk now."""
    if not is_unsettled(folder):
        return False
    with _claim(folder) as claim:
        if not folder.memory.exists() and _stands_still(folder, handle):
            _write_down(folder, engine, handle, claim)
        if not folder.memory.exists():
            return False
        _let_settle(folder, group, handle)
        if _went_on(folder):
            remove_tree(folder.memory)
            return False
        engine.clear(folder.path.name)
        return True


def process_of(folder: Folder, handle: Handle) -> tuple[int, int]:
    """(process id on the host, its start time) of a sandbox's daemon, or of the gVisor around it."""
    return folder.noted_process() or (int(handle.data["pid"]), int(handle.data["started"]))


def current(folder: Folder, handle: Handle) -> Handle:
    """The handle with the processes that there are now."""
    pid, started = process_of(folder, handle)
    return replace(handle, data={**handle.data, "pid": pid, "started": started})


@contextmanager
def _claim(folder: Folder) -> Iterator[int]:
    """Be the only one at it, with a descriptor that keeps it so in whoever inherits it; else Unavailable."""
    descriptor = os.open(folder.pausing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, folder.path.name)
        try:
            yield descriptor
        except (Conflict, Unavailable):
            folder.pausing.unlink()
            raise
        # On any other error it is in doubt how far it came: the file stays, and `settle` has work to do.
        folder.pausing.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, sandbox_id: str) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the memory of sandbox {sandbox_id} is still being written",
                    code=Code.RUNTIME_UNAVAILABLE,
                    hint="ask again in a while",
                    retry_after=5.0,
                ) from error
        time.sleep(0.05)


def _require_room(folder: Folder, group: Group) -> None:
    """A disk that fills up while memory is written would cost the sandbox: gVisor would not go on."""
    disk = os.statvfs(folder.path)
    free, needed = disk.f_bavail * disk.f_frsize, group.memory_bytes()
    if free < needed:
        raise Unavailable(
            f"the sandbox uses {needed >> 20} MiB of memory, and the server's disk has {free >> 20} MiB left",
            code=Code.CAPACITY_EXHAUSTED,
            hint="free space in the server's data directory",
        )


def _write_down(folder: Folder, engine: Engine, handle: Handle, claim: int) -> None:
    """The checkpoint of a suspended sandbox; it is on disk when this returns."""
    draft = folder.memory_draft
    if draft.exists():
        remove_tree(draft)
    draft.mkdir(mode=0o700)
    (draft / folder.mark.name).write_text(str(_events_size(folder)))
    try:
        _run(engine.checkpoint(folder.path.name, draft), folder, claim)
    except RuntimeFailure:
        _call_off(folder, engine, handle)
        raise
    if not _await_end(folder, handle):
        raise RuntimeFailure(f"gVisor's processes of {folder.path.name} did not end at a checkpoint")
    engine.clear(folder.path.name)
    watch.reap_orphans()


def sync(folder: Folder) -> None:
    """Have it on disk for good: it shall outlive a loss of power."""
    descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)


def _call_off(folder: Folder, engine: Engine, handle: Handle) -> None:
    """Let the sandbox go on where the checkpoint has not even begun."""
    remove_tree(folder.memory_draft)
    if watch.await_end(*process_of(folder, handle), timeout=0):
        return
    command = engine.signal(folder.path.name, "CONT")
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_END_SECONDS)
    deadline = time.monotonic() + _SETTLE_SECONDS
    while _stands_still(folder, handle) and time.monotonic() < deadline:
        time.sleep(0.02)


def _run(command: list[str], folder: Folder, claim: int) -> None:
    """In a session of its own, so that it comes to its end also when this server does not."""
    begun = folder.daemon_log.stat().st_size if folder.daemon_log.exists() else 0
    shell = ["/bin/sh", "-c", _THEN_RENAME, "sh", str(folder.memory_draft), str(folder.memory)]
    with folder.daemon_log.open("ab") as log:
        try:
            done = subprocess.run(
                ["setsid", "--fork", "--wait", *shell, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(claim,),
                timeout=_CHECKPOINT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeFailure(f"runsc checkpoint took more than {_CHECKPOINT_SECONDS:g} s") from error
    if done.returncode != 0:
        raise RuntimeFailure(f"runsc checkpoint: {_said(folder.daemon_log, begun) or done.returncode}")


def _said(log: Path, begun: int) -> str:
    with log.open("rb") as file:
        file.seek(begun)
        words = file.read().decode(errors="replace").strip().splitlines()
    return f"{words[0][:500]} … {words[-1][-300:]}" if words else ""


def _events_size(folder: Folder) -> int:
    return folder.events.stat().st_size if folder.events.exists() else 0


def _went_on(folder: Folder) -> bool:
    """Whether the sandbox's processes have done anything since they were written down."""
    try:
        return _events_size(folder) != int(folder.mark.read_text())
    except (FileNotFoundError, ValueError):
        return False


def _stands_still(folder: Folder, handle: Handle) -> bool:
    """Whether a live daemon waits for a checkpoint: it has closed its door."""
    if watch.await_end(*process_of(folder, handle), timeout=0):
        return False
    try:
        with socket.create_connection((handle.host, handle.port), _SETTLE_SECONDS):
            return False
    except ConnectionRefusedError:
        return True
    except OSError as error:
        raise Unavailable(f"the daemon of {folder.path.name} cannot be asked: {error}") from error


def _let_settle(folder: Folder, group: Group, handle: Handle) -> None:
    """Wait until processes beside a complete checkpoint are gone, or are the ones that count."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not _went_on(folder) and not watch.await_end(*process_of(folder, handle), timeout=0.05):
        if time.monotonic() > deadline:
            group.kill()
            _await_end(folder, handle)
            return
    if not _went_on(folder) and group.exists():
        group.kill()  # a start that was cut short before it noted its process


def _await_end(folder: Folder, handle: Handle) -> bool:
    return watch.await_end(*process_of(folder, handle), timeout=_END_SECONDS)


def _suspend(handle: Handle) -> None:
    """Ask the daemon, and wait for the end of its last connection: then it has none."""
    request = (
        "POST /v1/internal/suspend HTTP/1.1\r\n"
        f"Host: {handle.host}\r\nX-EXECD-ACCESS-TOKEN: {handle.token}\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    answer = b""
    try:
        with socket.create_connection((handle.host, handle.port), _SUSPEND_SECONDS) as connection:
            connection.sendall(request.encode())
            while not answer.endswith(b"\r\n\r\n") and (chunk := connection.recv(65536)):
                answer += chunk
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # which is how the daemon hangs up
                while connection.recv(65536):
                    pass
    except OSError as error:
        raise RuntimeFailure(f"the daemon could not be suspended: {error}") from error
    status = answer.split(b" ", 2)[1:2]
    if status == [b"409"]:
        raise Conflict(
            "processes of the sandbox hold TCP sockets, which a checkpoint of memory cannot keep",
            code=Code.SANDBOX_STATE_CONFLICT,
            hint="end its servers and clients first, or make sandboxes that are paused in memory, and "
            "snapshots of files only",
        )
    if status != [b"200"]:
        raise RuntimeFailure(f"the daemon could not be suspended: {answer[:200]!r}")


def copy_to(folder: Folder, memory: Path) -> None:
    """Give a sandbox's memory to a snapshot as well. The file is never written again."""
    memory.mkdir(mode=0o700, parents=True)
    try:
        os.link(folder.memory / IMAGE, memory / IMAGE)
    except OSError:  # another file system
        shutil.copyfile(folder.memory / IMAGE, memory / IMAGE)
