# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Servers whose internet is the small one, and sandboxes of theirs under policies."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

_serial = itertools.count()


def make_server(folder: Path, world: World, extra: str = "") -> Server:
    """A server whose internet is the small one."""
    block = (os.getpid() * 5 + next(_serial)) % 256
    network = f"10.{208 + block // 64}.{block % 64 * 4}.0/22"
    return Server(folder, "local", f'{world.settings}{extra}[local]\nnetwork = "{network}"\nslots = 2\n')


def isolations() -> list[str]:
    """How far sandboxes may be kept apart; each attempt is made in each way."""
    return ["container", "gvisor"]


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
        "image": {"uri": "host"},
        "resourceLimits": {"memory": "1Gi", "pids": "1024", "cpu": "2"},
        "extensions": {"casulo.isolation": isolation},
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
