# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A mixed load of clients: create, run, files, pause, renew, delete; and what each was told."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError

Excused = Callable[[CasuloError], bool]


@dataclass
class Told:
    """What the server said: sandboxes that are `there`, and those that are `gone`. In between is open."""

    there: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass
class Mixture:
    """Workers that go on until `until`; an error that is not `excused` is a fault."""

    client: Callable[[], AsyncClient]
    workers: int
    until: float
    excused: Excused = lambda error: False
    seed: int = 0
    lifetime: int = 600
    """Seconds after which what a worker leaves behind ends by itself."""

    rest: float = 0
    """Seconds that a worker pauses after each life."""

    told: Told = field(default_factory=Told)

    async def run(self) -> Told:
        """All workers, to their end."""
        await asyncio.gather(*(self._worker(random.Random(self.seed + n)) for n in range(self.workers)))
        return self.told

    async def _worker(self, dice: random.Random) -> None:
        while time.monotonic() < self.until:
            try:
                async with self.client() as client:
                    await self._life(client, dice)
                await asyncio.sleep(self.rest)
            except CasuloError as error:
                if not self.excused(error):
                    self.told.faults.append(f"{type(error).__name__} {error.code}: {error}")
                await asyncio.sleep(0.05)

    async def _life(self, client: AsyncClient, dice: random.Random) -> None:
        box = await AsyncSandbox.create("host", timeout=self.lifetime, client=client)
        self._did("create", box.id)
        for _ in range(dice.randrange(1, 4)):
            await self._use(box, dice)
        if dice.random() < 0.9:
            self.told.there.discard(box.id)
            await box.kill()
            self.told.gone.add(box.id)
            self.told.done["delete"] += 1

    async def _use(self, box: AsyncSandbox, dice: random.Random) -> None:
        act = dice.choice(["run", "run", "files", "pause", "renew"])
        if act == "run":
            mark = str(dice.random())
            done = await box.commands.run(f"echo {mark}")
            self._check(done.stdout == f"{mark}\n", f"{box.id} printed {done.stdout!r}")
        elif act == "files":
            text = "x" * dice.randrange(1, 100_000)
            await box.files.write("/tmp/file", text)
            self._check(await box.files.read("/tmp/file") == text, f"{box.id} read something else")
        elif act == "pause":
            await box.pause()
            await box.resume()
        else:
            await box.renew(self.lifetime)
        self.told.done[act] += 1

    def _did(self, act: str, sandbox_id: str) -> None:
        self.told.there.add(sandbox_id)
        self.told.done[act] += 1

    def _check(self, right: bool, fault: str) -> None:
        if not right:
            self.told.faults.append(fault)
