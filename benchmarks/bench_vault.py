# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a credential costs: time per request, requests per second, and memory of the one process.

Client and server are the two ends of one small Go program, and share the machine with what is measured.
The vaults are told to the egress process over its own socket.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_egress import _configuration
from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.sandbox import AsyncSandbox
from casulo.images import daemon
from casulo.network.egress.calls import call
from devkit import ROOT
from devkit.packages import go_command
from support.internet.boxes import process_of
from support.internet.world import World

VALUE = "sk-bench_0123456789-abcdefghijklmnop"
NAME, HOST = "fast.test", 54
ROUNDS, SECONDS = 5, 2.0
CONNECTIONS, LOAD_SECONDS = 64, 6.0
SANDBOXES, BINDINGS = 200, 5


class _World(World):
    """The small internet with one more server, which answers 401 to who comes without the credential."""

    def names(self) -> dict[str, list[tuple[str, str]]]:
        return {**super().names(), NAME: [("A", self.at(HOST))]}


async def measure() -> Report:
    with tempfile.TemporaryDirectory(prefix="casulo-bench-") as place:
        folder = Path(place)
        load = folder / "load"
        build = [go_command(), "build", "-o", str(load), "./internal/vault/load"]
        subprocess.run(build, cwd=ROOT / "dataplane", check=True)
        world = _World(folder / "world", 5).start()
        try:
            with _server(world, load):
                figures = await _requests(world, load, folder)
        finally:
            world.stop()
        return Report("vault", {**figures, **_memory(folder)}, conditions())


@contextmanager
def _server(world: World, load: Path) -> Iterator[None]:
    command = ["ip", "netns", "exec", world.name, str(load), "-serve", f"{world.at(HOST)}:443"]
    command += ["-pair", str(world.folder / "server.pem"), "-insist", f"Authorization: Bearer {VALUE}0-0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "serving"
        try:
            yield
        finally:
            process.kill()


async def _requests(world: World, load: Path, folder: Path) -> dict[str, Any]:
    policy = {"egress": [{"action": "allow", "target": NAME}]}
    async with serving(extra=world.settings) as (server, client):
        sandbox = await AsyncSandbox.create("host", network_policy=policy, client=client)
        await sandbox.files.write("/tmp/load", load.read_bytes(), mode=0o755)
        await sandbox.files.write("/tmp/plain.pem", world.authority.read_text())
        (await sandbox.commands.run(f"getent hosts {NAME}")).check()
        socket = Path(process_of(server)["socket"])
        vault = _vault(folder, 0, NAME, world.authority.read_text())
        await sandbox.files.write("/tmp/injected.pem", vault["ca"]["certificate"])
        pid = call(socket, "GET", "/health")["pid"]

        async def drive(kind: str, connections: int, seconds: float) -> dict[str, Any]:
            route = f"/sandboxes/{sandbox.id}/vault"
            call(socket, "PUT", route, vault) if kind == "injected" else call(socket, "DELETE", route)
            ends = f"-to {world.at(HOST)}:443 -name {NAME} -roots /tmp/{kind}.pem"
            if kind == "plain":  # the client has to say it by itself
                ends += f" -say 'Authorization: Bearer {VALUE}0-0'"
            command = f"/tmp/load {ends} -connections {connections} -seconds {seconds}"
            return dict(json.loads((await sandbox.commands.run(command, timeout=120)).check().stdout))

        single: dict[str, list[dict[str, Any]]] = {"plain": [], "injected": []}
        for _ in range(ROUNDS):
            for kind, results in single.items():
                results.append(await drive(kind, 1, SECONDS))
        many, used = {}, {}
        for kind in ("plain", "injected"):
            before = _processor_seconds(pid)
            many[kind] = await drive(kind, CONNECTIONS, LOAD_SECONDS)
            used[kind] = _processor_seconds(pid) - before
        resident = _resident(pid)
        await sandbox.kill()
    cost = round(used["injected"] / many["injected"]["requests"] * 1_000_000)
    figures = {"process_microseconds_per_injected": cost, "process_after_load_mib": resident}
    return {**_single(single), **_many(many), **figures}


def _single(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    best = {kind: min(r["p50_ms"] for r in each) for kind, each in results.items()}
    return {
        "kept_plain_p50_ms": round(best["plain"], 3),
        "kept_injected_p50_ms": round(best["injected"], 3),
        "added_kept_connection_p50_ms": round(best["injected"] - best["plain"], 3),
    }


def _many(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"connections": CONNECTIONS}
    for kind, each in results.items():
        figures[f"{kind}_requests_per_s"] = round(each["requests"] / each["seconds"])
        figures[f"{kind}_p99_ms"] = round(each["p99_ms"], 2)
        figures[f"{kind}_failed"] = each["failed"]
    return figures


def _vault(folder: Path, number: int, host: str, roots: str) -> dict[str, Any]:
    """A vault with an authority of its own and some bindings, of which the first is for the host."""
    key, certificate = folder / f"{number}.key", folder / f"{number}.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN=sandbox {number}"]
    subprocess.run(
        [*command, "-addext", "basicConstraints=critical,CA:TRUE"], check=True, capture_output=True
    )
    hosts = [host, *(f"*.n{number}-{n}.example.test" for n in range(1, BINDINGS))]
    return {
        "revision": 1,
        "ca": {"certificate": certificate.read_text(), "key": key.read_text()},
        "credentials": {f"key{n}": f"{VALUE}{number}-{n}" for n in range(BINDINGS)},
        "bindings": [_binding(n, name) for n, name in enumerate(hosts)],
        "upstreamRoots": roots,
    }


def _binding(number: int, host: str) -> dict[str, Any]:
    match = {
        "hosts": [host],
        "schemes": ["https"],
        "ports": [443],
        "methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
        "paths": ["/*"],
    }
    auth = {"type": "bearer", "credential": f"key{number}"}
    return {"name": f"b{number}", "match": match, "auth": auth}


def _memory(folder: Path) -> dict[str, Any]:
    """The process alone with all its vaults, in a namespace with that many interfaces."""
    with ExitStack() as stack:
        name = f"vault{time.monotonic_ns() % 100000}"
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
            before = _resident(process.pid)
            told = [_sandbox(folder, n) for n in range(SANDBOXES)]
            call(folder / "socket", "PUT", "/sandboxes", told, seconds=300)
            after = _resident(process.pid)
            process.terminate()
    return {
        "sandboxes": SANDBOXES,
        "bindings_each": BINDINGS,
        "process_empty_mib": before,
        "process_mib": after,
    }


def _sandbox(folder: Path, number: int) -> dict[str, Any]:
    rules = [{"action": "allow", "target": f"*.n{number}-{n}.example.test"} for n in range(BINDINGS)]
    return {
        "id": f"box-{number}",
        "interface": f"csl-{number}",
        "address": f"10.{number >> 6}.{number & 63}.2",
        "policy": {"defaultAction": "deny", "egress": rules},
        "vault": _vault(folder, number, f"*.n{number}-0.example.test", ""),
    }


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return round(kilobytes / 1024, 1)
