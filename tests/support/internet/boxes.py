# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Servers whose internet is the small one, and sandboxes of theirs under policies."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.images import host
from support.engine import FOREVER, Engine
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

LIKE_HOST = "casulo-test/like-host:1"
_serial = itertools.count()


def make_server(folder: Path, world: World, extra: str = "") -> Server:
    """A server whose internet is the small one."""
    block = (os.getpid() * 5 + next(_serial)) % 256
    network = f"10.{208 + block // 64}.{block % 64 * 4}.0/22"
    return Server(folder, "local", f'{world.settings}{extra}[local]\nnetwork = "{network}"\nslots = 2\n')


def make_docker_server(folder: Path, world: World, engine: Engine) -> Server:
    """The same with sandboxes of an engine, whose image is nothing: they see this machine's programs."""
    image = host.prepare(folder / "host", None, ())
    if not engine.docker("images", "--quiet", LIKE_HOST).strip():
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(image.root, ".")
        changes = [f"ENV {name}={value}" for name, value in image.environment.items()]
        engine.build(LIKE_HOST, archive.getvalue(), *changes, FOREVER)
    block = (os.getpid() * 5 + next(_serial)) % 64
    cables = f'cable_network = "10.207.{block * 4}.0/22"\n'
    paths = f"[storage]\nallowed_host_paths = {json.dumps(image.binds)}\n"
    return Server(folder, "docker", world.settings + paths + engine.settings + cables, LIKE_HOST)


def isolations() -> list[str]:
    """How far sandboxes may be kept apart, and by whom; each attempt is made in each way."""
    return ["container", "gvisor", "docker"]


def _at_home(server: Server, isolation: str) -> dict[str, Any]:
    """What a request says to have this machine's programs inside."""
    if server.runtime != "docker":
        return {"image": {"uri": "host"}, "extensions": {"casulo.isolation": isolation}}
    folders = enumerate(host.prepare(server.data_dir / "host", None, ()).binds)
    volumes = [
        {"name": f"v{number}", "host": {"path": path}, "mountPath": path, "readOnly": True}
        for number, path in folders
    ]
    return {"image": {"uri": LIKE_HOST}, "volumes": volumes}


@dataclass
class Boxed:
    """A sandbox by its id, for plain requests."""

    server: Server
    id: str

    def log(self) -> str:
        """The audit log about it."""
        answer = self.server.request("GET", f"/v1/sandboxes/{self.id}/egress/log")
        assert answer.status_code == 200, answer.text
        return answer.text

    def logged(self, pattern: str) -> bool:
        """Whether a line that denies something says so."""
        lines = (line for line in self.log().splitlines() if '"deny"' in line)
        return any(re.search(pattern, line) for line in lines)

    def policy(self, method: str = "GET", body: Any = None) -> dict[str, Any]:
        """Read or change its policy."""
        answer = self.server.request(method, f"/v1/sandboxes/{self.id}/networkpolicy", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    @property
    def address(self) -> str:
        """Where it is on this machine."""
        found = self.server.request("GET", f"/v1/sandboxes/{self.id}/endpoints/44772").json()
        return str(found["endpoint"]).partition(":")[0]

    @property
    def gateway(self) -> str:
        """The host's end of its cable."""
        head, _, last = self.address.rpartition(".")
        return f"{head}.{int(last) - 1}"

    def delete(self) -> None:
        self.server.request("DELETE", f"/v1/sandboxes/{self.id}")


def create(server: Server, policy: Any = None, isolation: str = "container", **more: Any) -> Boxed:
    """A sandbox under a policy."""
    body: dict[str, Any] = {
        "resourceLimits": {"memory": "1Gi", "pids": "1024", "cpu": "2"},
        **_at_home(server, isolation),
        **more,
    }
    if policy is not None:
        body["networkPolicy"] = policy
    answer = server.request("POST", "/v1/sandboxes", json=body)
    if answer.status_code == 400 and "isolation" in answer.text:
        cannot_run(answer.json()["message"])
    assert answer.status_code == 202, answer.text
    return Boxed(server, answer.json()["id"])


async def connected(boxed: Boxed, client: AsyncClient) -> AsyncSandbox:
    """The same sandbox with everything that the client can do."""
    return await AsyncSandbox.connect(boxed.id, client=client)


async def reach(box: Boxed, *names: str) -> list[bool]:
    """Which of these names a plain request reaches from inside."""
    async with AsyncClient(Connection(box.server.url, box.server.api_key)) as client:
        inside = await connected(box, client)
        tries = [await inside.commands.run(f"curl -sSf -m 5 http://{name}/", timeout=20) for name in names]
    return [done.ok for done in tries]


def network_of(box: Boxed, engine: Engine | None = None) -> str:
    """A file that stands for the sandbox's network namespace."""
    if engine is not None:
        names = engine.docker("ps", "--all", "--format", "{{.Names}}").split()
        name = next(name for name in names if name.endswith(box.id))
        return f"/proc/{engine.docker('inspect', '--format', '{{.State.Pid}}', name).strip()}/ns/net"
    slot = (box.server.data_dir / "sandboxes" / box.id / "slot").read_text()
    return f"{Path(process_of(box.server)['socket']).parents[1]}/netns/{int(slot):x}"


def process_of(server: Server) -> dict[str, Any]:
    """The configuration of a server's egress process, with its port numbers."""
    for path in Path("/run/casulo").glob("*/egress/config.json"):
        told = json.loads(path.read_text())
        if str(server.data_dir) in told["audit"]["path"]:
            return {
                **told,
                **{"port_" + k: v for k, v in json.loads(Path(told["ports"]).read_text()).items()},
            }
    raise AssertionError("the server has no egress process")


def results(text: str) -> dict[str, dict[str, Any]]:
    """What the probe printed, by attempt."""
    return {found["name"]: found for line in text.splitlines() if (found := json.loads(line))}
