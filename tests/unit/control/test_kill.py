# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A process that really dies by kill -9, with real daemons behind it, and the one that takes over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo import linux
from casulo.control.lifecycle import Lifecycle
from casulo.control.settings import ControlSettings, SandboxSettings
from casulo.images import daemon
from casulo.model.errors import Unsupported
from casulo.model.sandbox import Sandbox
from casulo.model.states import State
from casulo.runtimes.fake import FakeRuntime
from casulo.runtimes.registry import Registry
from casulo.store.store import Store
from support.machine import cannot_run

SETTINGS = ControlSettings(sandbox=SandboxSettings(stop_grace_seconds=0.2))
BUSY = """
import asyncio, sys
from pathlib import Path
import structlog
from casulo.control.lifecycle import Lifecycle
from casulo.control.settings import ControlSettings
from casulo.model.draft import Draft
from casulo.runtimes.fake import FakeRuntime
from casulo.runtimes.registry import Registry
from casulo.store.store import Store

async def churn(lifecycle):
    while True:
        made = await lifecycle.create(Draft("host"))
        await lifecycle.pause(made.id)
        await lifecycle.resume(made.id)
        await lifecycle.delete(made.id)

async def main(data):
    store = await Store.open(f"sqlite:///{data}/casulo.db")
    lifecycle = Lifecycle(store, Registry([FakeRuntime(data)]), ControlSettings())
    await lifecycle.open()
    kept = [await lifecycle.create(Draft("host")) for _ in range(2)]
    await lifecycle.pause(kept[1].id)
    print(*(sandbox.id for sandbox in kept), flush=True)
    await asyncio.gather(*(churn(lifecycle) for _ in range(4)))

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder for servers; whatever they leave in it is ended."""
    try:
        daemon.execd_binary(daemon.host_architecture())
    except Unsupported as missing:
        cannot_run(missing.message)
    yield tmp_path
    last = FakeRuntime(tmp_path)
    await last.open(lambda sandbox_id, exit_: None)
    for sandbox_id in await last.list():
        await last.destroy(sandbox_id, None, 0)
    await last.close()


async def killed_server(data: Path, after: float) -> list[str]:
    """Ids of a running and a paused sandbox that a server had before it was killed at work."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        BUSY,
        str(data),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    assert server.stdout is not None
    kept = (await asyncio.wait_for(server.stdout.readline(), 30)).decode().split()
    await asyncio.sleep(after)
    server.send_signal(signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL
    return kept


def lives(sandbox: Sandbox) -> bool:
    assert sandbox.handle is not None
    return linux.start_time(int(sandbox.handle.data["pid"])) == sandbox.handle.data["started"]


@pytest.mark.parametrize("seed", range(5))
async def test_after_kill_9_nothing_is_lost_and_nothing_orphaned(data: Path, seed: int) -> None:
    running, paused = await killed_server(data, random.Random(seed).random() / 5)
    store = await Store.open(f"sqlite:///{data}/casulo.db")
    runtime = FakeRuntime(data)
    lifecycle = Lifecycle(store, Registry([runtime]), SETTINGS)
    await lifecycle.open()
    await lifecycle.settled()
    rows = {sandbox.id: sandbox for sandbox in await store.all()}
    try:
        assert set(rows) == await runtime.list()
        assert rows[running].status.state is State.RUNNING
        assert rows[paused].status.state is State.PAUSED
        assert {s.status.state for s in rows.values()} <= {State.RUNNING, State.PAUSED}
        assert all(lives(sandbox) for sandbox in rows.values())
        await lifecycle.resume(paused)
        await asyncio.gather(*(lifecycle.delete(sandbox_id) for sandbox_id in rows))
        assert not any(lives(sandbox) for sandbox in rows.values())
        assert await runtime.list() == set()
    finally:
        await lifecycle.close()
        await store.close()
