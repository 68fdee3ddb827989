# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where chaos happens: one server, what it was asked for, and how to find and kill what it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from casulo.client.connection import Connection
from casulo.client.faults import Unreachable
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.engine import Engine
from support.server import Server
from support.traces import instance_of

KEPT = 'until test -s "$HOME/pid"; do sleep 0.02; done; kill -0 "$(cat "$HOME/pid")"'
"""Whether the process that every sandbox here begins with is still there: memory was kept."""

SLEEPER = ["sh", "-c", 'echo $$ > "$HOME/pid"; exec sleep 986']


@dataclass
class Ground:
    """One server under attack. `seed` makes a run say what it did."""

    server: Server
    seed: int
    place: str
    engine: Engine | None = None
    dice: random.Random = field(init=False)
    known: set[str] = field(default_factory=set)
    """Sandboxes whose daemons are not to be killed as those of an unknown one."""

    story: list[str] = field(default_factory=list)
    """What was done to it and what it answered, in order."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def note(self, what: str) -> None:
        """One line of the story."""
        self.story.append(f"{datetime.now(UTC):%H:%M:%S.%f} {what}")

    @contextmanager
    def told(self) -> Iterator[None]:
        """A failure inside says the seed and what led to it, and keeps all of it in a file."""
        try:
            yield
        except BaseException as error:
            kept = Path(tempfile.gettempdir()) / f"casulo-chaos-{self.place}-{self.seed}.log"
            story = "\n".join(self.story)
            kept.write_text(f"{''.join(traceback.format_exception(error))}\n{story}\n\n{self.server.output}")
            last = "\n".join(self.story[-40:])
            print(f"kept in {kept}: {error}", flush=True)  # a long run may be cut before it tells
            where = f"seed {self.seed} on {self.place}, kept in {kept}"
            raise AssertionError(f"{where}: {type(error).__name__}: {error}\n{last}") from error

    @asynccontextmanager
    async def client(self, timeout: float = 90) -> AsyncIterator[AsyncClient]:
        """To the process that serves now."""
        connection = Connection(self.server.url, self.server.api_key, request_timeout=timeout)
        async with AsyncClient(connection) as client:
            yield client

    def body(self, **more: object) -> dict[str, object]:
        """A create request."""
        usual = {"image": {"uri": self.server.image}, "resourceLimits": {}, "timeout": 900}
        return {**usual, "entrypoint": SLEEPER, **more}

    async def made(self, client: AsyncClient, **more: object) -> str:
        """The id of a new sandbox."""
        info, _ = await client.create(self.body(**more))
        self.known.add(info.id)
        return info.id

    async def run(self, client: AsyncClient, sandbox_id: str, script: str) -> int | None:
        """The exit code of a command in a running sandbox."""
        for last in (False, False, True):
            try:
                async with await AsyncSandbox.connect(sandbox_id, client=client) as box:
                    return (await box.commands.run(script, timeout=60)).exit_code
            except Unreachable:  # on a machine that is this busy, five seconds may be too few to connect
                if last:
                    raise
        raise AssertionError("the last try either returns or raises")

    def processes(self, sandbox_id: str) -> list[int]:
        """On this machine, oldest first; the first is the one that everything else depends on."""
        if self.engine:
            return self._of_engine(sandbox_id)
        return sorted(pid for pid in _pids() if sandbox_id in _marks(pid))

    def _of_engine(self, sandbox_id: str) -> list[int]:
        assert self.engine
        names = [name for name in self.engine.ours()["containers"] if sandbox_id in name]
        with contextlib.suppress(AssertionError):  # it is gone meanwhile
            told = [self.engine.docker("inspect", "--format", "{{.State.Pid}}", name) for name in names]
            return [int(pid) for pid in told if int(pid)]
        return []

    def strangers(self) -> list[int]:
        """Main processes of sandboxes that nobody made on purpose: those in their start, pool members."""
        folders = [self.server.data_dir / name for name in ("sandboxes", "fake", "microvms")]
        found = [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()]
        mains = [self.processes(name)[:1] for name in found if name not in self.known]
        return [pid for main in mains for pid in main]

    def egress(self) -> list[int]:
        """The process that enforces policies, if there is one."""
        place = Path("/run/casulo") / instance_of(self.server.data_dir)
        return [pid for pid in _pids() if f"{place}/egress" in _marks(pid)]


def kill(pids: list[int]) -> None:
    """SIGKILL; what is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def until(holds: Callable[[], Awaitable[bool]], what: str, within: float = 90) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within
    while not await holds():
        assert time.monotonic() < deadline, f"{what}: it did not happen in time"
        await asyncio.sleep(0.05)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _marks(pid: int) -> str:
    """What shows whose process it is: control group, command line, and where it writes."""
    place = Path(f"/proc/{pid}")
    found = ""
    with contextlib.suppress(OSError):
        found += (place / "cgroup").read_text()
        found += (place / "cmdline").read_text().replace("\0", " ")
        found += os.readlink(place / "fd/2")
    return found
