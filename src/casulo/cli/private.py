# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A server of one's own for the time of one command, for `osb run` when there is no other.

It lives in a numbered place under Casulo's home that is locked while it is used. What a killed predecessor
left in that place is cleared away first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from casulo.client.connection import Connection, Home
from casulo.client.lifecycle import AsyncClient
from casulo.model.errors import Code, NotFound, RuntimeFailure

START_SECONDS = 30.0
STOP_SECONDS = 15.0
PLACES = 64
_POLL = 0.01
_LOG_TAIL_BYTES = 2000


@asynccontextmanager
async def private_server(home: Path) -> AsyncIterator[Connection]:
    """Start it, hand out the connection, stop it."""
    with _place(home / "private") as place:
        key = secrets.token_urlsafe(24)
        process = _start(place, home / "images", key)
        try:
            connection = await _ready(process, place, key)
            await _clear(connection)
            yield connection
        finally:
            await asyncio.shield(asyncio.to_thread(_stop, process))


@contextmanager
def _place(base: Path) -> Iterator[Path]:
    """The first place that nobody uses; the lock goes with this process, however it ends."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(PLACES):
        place = base / str(number)
        place.mkdir(exist_ok=True, mode=0o700)
        with (place / "in-use").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield place
            return
    raise RuntimeFailure(
        f"{PLACES} private servers run already",
        code=Code.CAPACITY_EXHAUSTED,
        hint="start one for all of them with `osb server`",
    )


def _start(place: Path, images: Path, key: str) -> subprocess.Popen[bytes]:
    """No pipe connects us: a server that outlives its caller must not block on one."""
    words = ["server", "--host", "127.0.0.1", "--port", "0", "--with-parent"]
    words += ["--data-dir", str(place), "--images-dir", str(images)]
    (place / "server.json").unlink(missing_ok=True)
    with (place / "server.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "casulo.cli", *words],
            env={**os.environ, "OPENSANDBOX_SERVER_API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours; the server is stopped after its sandbox is gone
        )


async def _ready(process: subprocess.Popen[bytes], place: Path, key: str) -> Connection:
    home, deadline = Home(place), time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server := home.server():
            return Connection(url=str(server["url"]), api_key=key, source="private server")
        if process.poll() is not None:
            break
        await asyncio.sleep(_POLL)
    raise RuntimeFailure(
        f"the private server did not start:\n{_tail(place / 'server.log')}",
        code=Code.HOST_UNSUPPORTED,
        hint="`osb doctor` tells what this machine lacks",
    )


async def _clear(connection: Connection) -> None:
    async with AsyncClient(connection) as client:
        while left := (await client.list(page_size=100)).items:
            for sandbox in left:
                with contextlib.suppress(NotFound):
                    await client.kill(sandbox.id)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-_LOG_TAIL_BYTES:]
    except OSError as error:
        return str(error)
    return text.decode("utf-8", "replace").strip()
