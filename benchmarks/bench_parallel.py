# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Many commands at once in one sandbox: none lost, none mixed up, none with an unclean end."""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError

AT_ONCE = 64
ROUNDS = 10


async def measure() -> Report:
    async with serving() as (_, client), await AsyncSandbox.create("host", client=client) as sandbox:
        (await sandbox.commands.run("true")).check()
        rounds, wrong = [], 0
        for turn in range(ROUNDS):
            begun = time.perf_counter()
            right = await asyncio.gather(*(_one(sandbox, f"{turn}-{i}") for i in range(AT_ONCE)))
            rounds.append(time.perf_counter() - begun)
            wrong += right.count(False)
    figures = {
        "commands": AT_ONCE * ROUNDS,
        "at_once": AT_ONCE,
        "lost_or_unclean": wrong,
        **milliseconds("round_", rounds),
    }
    return Report("parallel", figures, conditions())


async def _one(sandbox: AsyncSandbox, mark: str) -> bool:
    try:
        done = await sandbox.commands.run(f"echo {mark}; echo {mark} >&2")
    except CasuloError:
        return False
    return (done.exit_code, done.stdout, done.stderr) == (0, f"{mark}\n", f"{mark}\n")
