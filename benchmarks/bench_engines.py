# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From the create call to the end of the first command on each engine, against `docker run --rm`.

All of it runs in a network namespace of its own, where the Docker daemon may have its usual bridge and
rules. The engines take turns, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks import docker
from benchmarks.harness import NETWORK, conditions, serving
from benchmarks.report import Report, Value, milliseconds, quantile
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox

RUNS = 30
WARM_UP = 2
_LOCAL = {"crun": 'oci_runtime = "crun"', "runc": 'oci_runtime = "runc"', "runsc": 'isolation = "gvisor"'}


@dataclass(frozen=True)
class Engine:
    """A way to get from nothing to the end of `true`, in seconds."""

    name: str
    once: Callable[[], Awaitable[float]]


async def measure() -> Report:
    if reason := docker.why_not():
        sys.exit(f"engines: cannot be measured here: {reason}")
    command = ["unshare", "--net", sys.executable, "-m", "benchmarks.bench_engines"]
    done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True, text=True)
    told = json.loads(done.stdout)
    return Report("engines", told["figures"], {**conditions(), **told["conditions"]})


async def _inside() -> dict[str, dict[str, Value]]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with docker.daemon(own_network=False) as yardstick:
        async with AsyncExitStack() as stack:
            engines = [
                *[await _local(stack, name) for name in _LOCAL if shutil.which(name)],
                await _docker(stack, yardstick),
                Engine("docker_run", lambda: asyncio.to_thread(yardstick.run)),
            ]
            samples: dict[str, list[float]] = {engine.name: [] for engine in engines}
            for turn in range(WARM_UP + RUNS):
                for engine in engines:
                    seconds = await engine.once()
                    if turn >= WARM_UP:
                        samples[engine.name].append(seconds)
        version = yardstick.version()
    return {"figures": _figures(samples), "conditions": {"docker": version, "docker_network": "bridge"}}


def _figures(samples: dict[str, list[float]]) -> dict[str, Value]:
    figures: dict[str, Value] = {"runs": RUNS}
    for name, seconds in samples.items():
        whole = milliseconds(f"{name}_", seconds)
        figures |= {key: value for key, value in whole.items() if key.endswith(("p50_ms", "p95_ms"))}
    ratio = quantile(samples["docker"], 0.5) / quantile(samples["docker_run"], 0.5)
    return {**figures, "docker_against_docker_run": round(ratio, 2)}


async def _local(stack: AsyncExitStack, name: str) -> Engine:
    network = NETWORK.replace("0.0/16", f"{list(_LOCAL).index(name)}.0/24")
    table = f'[local]\nnetwork = "{network}"\n{_LOCAL[name]}\n'
    _, client = await stack.enter_async_context(serving("local", table))
    return Engine(name, lambda: _once(client, "host"))


async def _docker(stack: AsyncExitStack, yardstick: docker.Docker) -> Engine:
    table = f'[docker]\nhost = "unix://{yardstick.socket}"\n'
    _, client = await stack.enter_async_context(serving("docker", table))
    return Engine("docker", lambda: _once(client, docker.IMAGE, "/bin/sleep", "600"))


async def _once(client: AsyncClient, image: str, *entrypoint: str) -> float:
    begun = time.perf_counter()
    sandbox = await AsyncSandbox.create(image, entrypoint=entrypoint or None, client=client)
    done = await sandbox.commands.run(["/bin/true"])
    seconds = time.perf_counter() - begun
    done.check()
    await sandbox.kill()
    return seconds


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_inside())))
