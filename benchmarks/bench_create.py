# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From the create call to the end of the first command, against `docker run --rm` in the same run."""

from __future__ import annotations

import sys
import time

from benchmarks import docker
from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds, quantile
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox

RUNS = 50
WARM_UP = 3


async def measure() -> Report:
    if reason := docker.why_not():
        print(f"create: no comparison with Docker: {reason}", file=sys.stderr)
        return await _alone()
    with docker.daemon() as yardstick:
        async with serving() as (_, client):
            await _warm_up(client, yardstick)
            ours: list[tuple[float, float]] = []
            theirs: list[float] = []
            for _ in range(RUNS):
                ours.append(await _once(client))
                theirs.append(yardstick.run())
        version = yardstick.version()
    ratio = quantile(theirs, 0.5) / quantile([whole for _, whole in ours], 0.5)
    figures = {**_figures(ours), **milliseconds("docker_", theirs), "ratio": round(ratio, 2)}
    return Report("create", figures, {**conditions(), "docker": version, "docker_network": "bridge"})


async def _alone() -> Report:
    async with serving() as (_, client):
        for _ in range(WARM_UP):
            await _once(client)
        return Report("create", _figures([await _once(client) for _ in range(RUNS)]), conditions())


async def _warm_up(client: AsyncClient, yardstick: docker.Docker) -> None:
    for _ in range(WARM_UP):
        await _once(client)
        yardstick.run()


async def _once(client: AsyncClient) -> tuple[float, float]:
    """Seconds until the sandbox is there, and until its first command ended."""
    begun = time.perf_counter()
    sandbox = await AsyncSandbox.create("host", client=client)
    created = time.perf_counter()
    done = await sandbox.commands.run(["true"])
    ended = time.perf_counter()
    done.check()
    await sandbox.kill()
    return created - begun, ended - begun


def _figures(samples: list[tuple[float, float]]) -> dict[str, float | int | str | bool]:
    whole = milliseconds("", [whole for _, whole in samples])
    return {
        "runs": len(samples),
        **whole,
        **milliseconds("create_only_", [created for created, _ in samples]),
    }
