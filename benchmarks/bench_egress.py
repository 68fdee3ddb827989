# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a network policy costs: requests, bytes, creates, changes, and the memory of the one process.

The small internet of the tests has public-looking addresses here, so that a sandbox without a policy
reaches it by plain address translation, which is what the other figures are compared with.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions, serving
from benchmarks.report import Report, milliseconds
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.images import daemon
from casulo.network.egress.calls import call
from support.internet.world import World

ROUNDS, REQUESTS = 4, 40
GIGABYTE = 1_000_000_000
CREATES, CHANGES = 30, 100
SANDBOXES, RULES = 500, 50
POLICY = {"egress": [{"action": "allow", "target": name} for name in ("good.test", "echo.test")]}

REQUEST = """
import http.client, json, ssl, sys, time
context = ssl.create_default_context(cafile='/tmp/ca.pem')
host, count = sys.argv[1], int(sys.argv[2])
def get(c):
    c.request('GET', '/', headers={'Host': 'good.test'}); c.getresponse().read()
class Named(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = context.wrap_socket(self.sock, server_hostname='good.test')
fresh, kept = [], []
for _ in range(count):
    begun = time.perf_counter(); c = Named(host); get(c); fresh.append(time.perf_counter() - begun)
for _ in range(count):
    begun = time.perf_counter(); get(c); kept.append(time.perf_counter() - begun)
print(json.dumps([fresh, kept]))
"""

RECEIVE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9009)); s.sendall(sys.argv[2].encode() + b'\\n')
buffer, got, begun = bytearray(1 << 20), 0, time.perf_counter()
while n := s.recv_into(buffer): got += n
print(got / (time.perf_counter() - begun))
"""


async def measure() -> Report:
    with tempfile.TemporaryDirectory(prefix="casulo-bench-") as place:
        world = World(Path(place), 3, prefix="25.77").start()
        try:
            figures = await _with_world(world)
        finally:
            world.stop()
    return Report("egress", {**figures, **_memory()}, conditions())


async def _with_world(world: World) -> dict[str, Any]:
    extra = world.settings.replace(f'public = ["{world.network}"]\n', "")
    async with serving(extra=extra) as (_, client):
        plain = await _ready(client, world, None)
        policed = await _ready(client, world, POLICY)
        figures = {
            **await _requests(plain, policed, world),
            **await _bytes(plain, policed, world),
            **await _changes(policed),
            **await _creates(client),
        }
        for sandbox in (plain, policed):
            await sandbox.kill()
    return figures


async def _ready(client: AsyncClient, world: World, policy: dict[str, Any] | None) -> AsyncSandbox:
    sandbox = await AsyncSandbox.create("host", network_policy=policy, client=client)
    await sandbox.files.write("/tmp/ca.pem", world.authority.read_text())
    await sandbox.files.write("/tmp/request.py", REQUEST)
    await sandbox.files.write("/tmp/receive.py", RECEIVE)
    if policy is not None:
        (await sandbox.commands.run("getent hosts good.test echo.test")).check()
    return sandbox


async def _requests(plain: AsyncSandbox, policed: AsyncSandbox, world: World) -> dict[str, Any]:
    """HTTPS to the same server, in turns; names are looked up beforehand."""
    times: dict[str, list[float]] = {"plain_new": [], "plain_kept": [], "policed_new": [], "policed_kept": []}
    command = f"python3 /tmp/request.py {world.at(80)} {REQUESTS}"
    for _ in range(ROUNDS):
        for name, sandbox in (("plain", plain), ("policed", policed)):
            done = (await sandbox.commands.run(command, timeout=120)).check()
            fresh, kept = json.loads(done.stdout)
            times[f"{name}_new"] += fresh[1:]
            times[f"{name}_kept"] += kept
    medians = {name: statistics.median(values) * 1000 for name, values in times.items()}
    return {
        "requests": ROUNDS * REQUESTS,
        **{f"https_{name}_p50_ms": round(value, 3) for name, value in medians.items()},
        "added_kept_connection_best_ms": round(
            (min(times["policed_kept"]) - min(times["plain_kept"])) * 1000, 3
        ),
        "added_new_connection_best_ms": round(
            (min(times["policed_new"]) - min(times["plain_new"])) * 1000, 3
        ),
        "added_new_connection_p50_ms": round(medians["policed_new"] - medians["plain_new"], 3),
        "added_kept_connection_p50_ms": round(medians["policed_kept"] - medians["plain_kept"], 3),
    }


async def _bytes(plain: AsyncSandbox, policed: AsyncSandbox, world: World) -> dict[str, Any]:
    """A gigabyte over TCP, in turns, the best of three."""
    best = {"plain": 0.0, "policed": 0.0}
    for _ in range(3):
        for name, sandbox in (("plain", plain), ("policed", policed)):
            command = f"python3 /tmp/receive.py {world.at(90)} {GIGABYTE}"
            done = (await sandbox.commands.run(command, timeout=120)).check()
            best[name] = max(best[name], float(done.stdout) * 8 / 1e9)
    return {
        "plain_gbit_per_s": round(best["plain"], 2),
        "policed_gbit_per_s": round(best["policed"], 2),
        "policed_to_plain_percent": round(100 * best["policed"] / best["plain"]),
    }


async def _changes(policed: AsyncSandbox) -> dict[str, Any]:
    """From the call to its answer, after which the new policy holds."""
    times = []
    for number in range(CHANGES):
        begun = time.perf_counter()
        await policed.egress.allow(f"n{number % 2}.test")
        times.append(time.perf_counter() - begun)
    return milliseconds("change_", times)


async def _creates(client: AsyncClient) -> dict[str, Any]:
    times: dict[str, list[float]] = {"plain": [], "policed": []}
    for _ in range(CREATES):
        for name, policy in (("plain", None), ("policed", POLICY)):
            begun = time.perf_counter()
            sandbox = await AsyncSandbox.create("host", network_policy=policy, client=client)
            times[name].append(time.perf_counter() - begun)
            await sandbox.kill()
            await asyncio.sleep(0.1)  # the next network slot gets ready
    plain, policed = (statistics.median(times[name]) * 1000 for name in ("plain", "policed"))
    return {
        "create_plain_p50_ms": round(plain, 2),
        "create_policed_p50_ms": round(policed, 2),
        "create_added_p50_ms": round(policed - plain, 2),
        "create_added_best_ms": round((min(times["policed"]) - min(times["plain"])) * 1000, 2),
    }


def _memory() -> dict[str, Any]:
    """The process alone, in a namespace with that many interfaces."""
    name = f"bench{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="casulo-bench-") as place, ExitStack() as stack:
        folder = Path(place)
        subprocess.run(["ip", "netns", "add", name], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        links = "".join(f"link add csl-{n} type veth peer name p{n}\n" for n in range(SANDBOXES))
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=links, text=True, check=True)
        (folder / "config").write_text(json.dumps(_configuration(folder)))
        binary = str(daemon.egress_binary(daemon.host_architecture()))
        command = ["ip", "netns", "exec", name, binary, "-config", str(folder / "config")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while not (folder / "socket").exists():
                time.sleep(0.01)
            time.sleep(0.2)
            begun = time.perf_counter()
            call(folder / "socket", "PUT", "/sandboxes", [_sandbox(n) for n in range(SANDBOXES)], seconds=300)
            took = time.perf_counter() - begun
            status = Path(f"/proc/{process.pid}/status").read_text()
            process.terminate()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "sandboxes": SANDBOXES,
        "rules_each": RULES,
        "process_mib": round(resident / 1024, 1),
        "all_policies_set_again_s": round(took, 2),
    }


def _sandbox(number: int) -> dict[str, Any]:
    rules = [{"action": "allow", "target": f"*.n{number}-{rule}.example.test"} for rule in range(RULES - 5)]
    rules += [{"action": "allow", "target": f"25.{rule}.{number % 256}.0/24"} for rule in range(5)]
    address = f"10.{number >> 6}.{number & 63}.2"
    policy = {"defaultAction": "deny", "egress": rules}
    return {"id": f"box-{number}", "interface": f"csl-{number}", "address": address, "policy": policy}


def _configuration(folder: Path) -> dict[str, Any]:
    return {
        "socket": str(folder / "socket"),
        "lock": str(folder / "lock"),
        "ports": str(folder / "ports"),
        "table": "casulo_bench_egress",
        "group": 999,
        "resolvers": [],
        "addresses": 262144,
        "blockDoH": True,
        "limits": {
            "connections": 1024,
            "connectionsPerSecond": 200,
            "queriesPerSecond": 100,
            "addresses": 4096,
        },
        "audit": {"path": str(folder / "audit"), "maxBytes": 1 << 20, "keep": 1},
    }
