# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Keeping the memory of gVisor sandboxes: checkpoint and restore. Blocking.

A checkpoint ends gVisor's processes, so the sandbox itself is continued from it, too, in the place where
it was: same folder, groups, address and token, other processes. A server that is killed in between
loses the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from casulo.model.errors import Code, Conflict, RuntimeFailure
from casulo.model.sandbox import Handle, Spec
from casulo.runtimes.local import watch
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.starting import Starter

_SUSPEND_SECONDS = 20.0
_CHECKPOINT_SECONDS = 120.0
IMAGE = "checkpoint.img"
"""The file that runsc writes into the folder that it is given."""


def keep(
    folder: Folder,
    engine: Engine,
    starter: Starter,
    handle: Handle,
    spec: Spec,
    memory: Path,
    copy: Callable[[], None],
) -> None:
    """Write the sandbox's memory below `memory`, have its files copied, and let it go on.

    Conflict, and nothing happened, where its processes hold TCP connections. A checkpoint that fails
    ends the sandbox: gVisor does not go on after it.
    """
    sandbox_id = folder.path.name
    memory.mkdir(mode=0o700, parents=True)
    _suspend(handle)
    _run(engine.checkpoint(sandbox_id, memory))
    if not watch.await_end(*process_of(folder, handle), timeout=30):
        raise RuntimeFailure(f"gVisor's processes of {sandbox_id} did not end at a checkpoint")
    try:
        copy()
    finally:
        starter.again(folder, engine, handle, spec, memory)


def process_of(folder: Folder, handle: Handle) -> tuple[int, int]:
    """(process id on the host, its start time) of a sandbox's daemon, or of the gVisor around it."""
    try:
        told = json.loads(folder.process.read_text())
    except FileNotFoundError:
        return int(handle.data["pid"]), int(handle.data["started"])
    return int(told["pid"]), int(told["started"])


def current(folder: Folder, handle: Handle) -> Handle:
    """The handle with the processes that there are now."""
    pid, started = process_of(folder, handle)
    return replace(handle, data={**handle.data, "pid": pid, "started": started})


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
            code=Code.SNAPSHOT_CREATE_FAILED,
            hint="end its servers and clients first, or take a snapshot of its files only",
        )
    if status != [b"200"]:
        raise RuntimeFailure(f"the daemon could not be suspended: {answer[:200]!r}")


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_CHECKPOINT_SECONDS,
        errors="replace",
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeFailure(
            f"runsc checkpoint: {words[0][:500]} … {words[0][-300:]}", code=Code.SNAPSHOT_CREATE_FAILED
        )
