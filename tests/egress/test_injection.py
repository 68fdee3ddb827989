# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Credentials in requests to bound hosts, through the packet filter and the real process.

The vault is told over the process's own socket; everything about requests that needs no namespaces
is tested in Go, next to the code.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError
from casulo.network.egress.calls import call
from support.internet.boxes import Boxed, connected, create, process_of
from support.internet.world import World
from support.server import Server

VALUE = "sk-test_0123456789-abcdef"
POLICY = {
    "egress": [
        {"action": "deny", "target": "good.test", "methods": ["PUT"]},
        {"action": "allow", "target": "good.test"},
        {"action": "allow", "target": "evil.test"},
    ]
}


class Bound:
    """A sandbox, the socket at which its vault is set, and the authority of its certificates."""

    def __init__(self, boxed: Boxed, socket: Path, folder: Path, world: World) -> None:
        self.boxed, self.socket, self.folder, self.world = boxed, socket, folder, world
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        made += ["-nodes", "-keyout", str(folder / "box.key"), "-out", str(folder / "box.pem"), "-days", "2"]
        made += ["-subj", "/CN=sandbox", "-addext", "basicConstraints=critical,CA:TRUE"]
        subprocess.run(made, check=True, capture_output=True)

    def set(self, *bindings: dict[str, Any]) -> None:
        """Make these the bindings."""
        told = {
            "revision": 1,
            "ca": {
                "certificate": (self.folder / "box.pem").read_text(),
                "key": (self.folder / "box.key").read_text(),
            },
            "credentials": {"key": VALUE},
            "bindings": list(bindings),
            "upstreamRoots": self.world.authority.read_text(),
        }
        call(self.socket, "PUT", f"/sandboxes/{self.boxed.id}/vault", told)

    def unset(self) -> None:
        """Take the vault away."""
        call(self.socket, "DELETE", f"/sandboxes/{self.boxed.id}/vault")


def binding(scheme: str = "https", port: int = 443, paths: tuple[str, ...] = ("/*",)) -> dict[str, Any]:
    """A bearer token for good.test."""
    match = {
        "hosts": ["good.test"],
        "schemes": [scheme],
        "ports": [port],
        "methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
        "paths": list(paths),
    }
    return {"name": f"b-{scheme}", "match": match, "auth": {"type": "bearer", "credential": "key"}}


@pytest.fixture
def bound(egress_server: Server, world: World, tmp_path: Path) -> Iterator[Bound]:
    boxed = create(egress_server, POLICY)
    yield Bound(boxed, Path(process_of(egress_server)["socket"]), tmp_path, world)
    boxed.delete()


class Inside:
    """What is asked from inside the sandbox."""

    def __init__(self, sandbox: AsyncSandbox, world: World) -> None:
        self.sandbox, self.world = sandbox, world

    async def curl(self, arguments: str, ca: str = "box") -> str:
        """The answer's body, or curl's complaint."""
        command = f"curl -sS -m 30 --cacert /tmp/{ca}.pem {arguments} 2>&1"
        return (await self.sandbox.commands.run(command, timeout=90)).stdout

    async def sent(self, url: str, more: str = "", ca: str = "box") -> dict[str, str]:
        """The headers that the server was sent."""
        answer = await self.curl(f"{more} {url}", ca)
        headers = json.loads(answer)["headers"]
        assert isinstance(headers, dict)
        return headers


async def enter(bound: Bound, client: AsyncClient) -> Inside:
    """The sandbox, with both authorities in files."""
    sandbox = await connected(bound.boxed, client)
    await sandbox.files.write("/tmp/box.pem", (bound.folder / "box.pem").read_text())
    await sandbox.files.write("/tmp/ca.pem", bound.world.authority.read_text())
    return Inside(sandbox, bound.world)


async def test_only_what_is_bound_gets_the_credential(bound: Bound, client: AsyncClient) -> None:
    inside = await enter(bound, client)
    bound.set(binding(), binding("http", 80, ("/headers/plain",)))
    wanted = f"Bearer {VALUE}"
    assert (await inside.sent("https://good.test/headers"))["Authorization"] == wanted
    again = await inside.sent("https://good.test/headers", "-H 'authorization: mine'")
    assert again["Authorization"] == wanted
    assert (await inside.sent("http://good.test/headers/plain"))["Authorization"] == wanted
    assert "Authorization" not in await inside.sent("http://good.test/headers/other")
    assert "Authorization" not in await inside.sent("https://evil.test/headers", ca="ca")
    assert "Authorization" not in await inside.sent("http://evil.test/headers/plain")
    log = bound.boxed.log()
    assert VALUE not in log
    lines = [found for line in log.splitlines() if (found := json.loads(line)).get("binding")]
    assert {(f["binding"], f["method"], f["path"], f["status"]) for f in lines} == {
        ("b-https", "GET", "/headers", 200),
        ("b-http", "GET", "/headers/plain", 200),
    }


async def test_steering_and_changes(bound: Bound, client: AsyncClient) -> None:
    inside = await enter(bound, client)
    bound.set(binding())
    fronted = await inside.curl("-H 'Host: evil.test' https://good.test/headers")
    assert "denied by vault" in fronted
    other = bound.world.at(81)
    pinned = await inside.curl(f"--resolve good.test:443:{other} https://good.test/headers")
    assert "curl:" in pinned and "headers" not in pinned
    assert bound.boxed.logged("good.test does not resolve to|no rule allows")
    assert "denied by" in await inside.curl("-X PUT https://good.test/headers")  # of the policy's methods
    bound.boxed.policy("PUT", {"egress": [{"action": "allow", "target": "evil.test"}]})
    assert "curl:" in await inside.curl("https://good.test/headers")
    bound.boxed.policy("PUT", POLICY)
    assert "Authorization" in await inside.sent("https://good.test/headers")
    bound.unset()
    assert "reset" in await inside.curl("https://good.test/headers")  # the rule on PUT sees nothing now
    bound.boxed.policy("PUT", {"egress": [{"action": "allow", "target": "good.test"}]})
    assert "certificate" in await inside.curl("https://good.test/headers")  # it is the server's own again
    assert "Authorization" not in await inside.sent("https://good.test/headers", ca="ca")


KEPT = """
import http.client, os, ssl, time
context = ssl.create_default_context(cafile='/tmp/ca.pem')
c = http.client.HTTPSConnection('good.test', context=context, timeout=20)
def ask():
    c.request('GET', '/headers')
    return b'Authorization' in c.getresponse().read()
print(ask())
open('/tmp/asked', 'w').close()
while not os.path.exists('/tmp/now'): time.sleep(0.05)
try:
    print(ask())
except OSError as error:
    print('cut')
"""


async def test_connections_that_passed_are_cut_when_their_host_is_bound(
    bound: Bound, client: AsyncClient
) -> None:
    inside = await enter(bound, client)
    bound.boxed.policy("PUT", {"egress": [{"action": "allow", "target": "good.test"}]})
    await inside.sandbox.files.write("/tmp/kept.py", KEPT)
    running = asyncio.create_task(inside.sandbox.commands.run("python3 /tmp/kept.py", timeout=120))
    for _ in range(600):
        if (await inside.sandbox.commands.run("ls /tmp")).stdout.split().count("asked"):
            break
        await asyncio.sleep(0.05)
    bound.set(binding())
    await inside.sandbox.files.write("/tmp/now", "")
    assert (await running).stdout.split() == ["False", "cut"]
    assert bound.boxed.logged("its host is bound to a credential now")


def test_the_process_tells_no_value_and_refuses_what_it_does_not_understand(bound: Bound) -> None:
    route = f"/sandboxes/{bound.boxed.id}"
    assert call(bound.socket, "GET", route)["vault"] is None
    bound.set(binding())
    told = call(bound.socket, "GET", route)
    assert told["vault"] == {"revision": 1}
    assert VALUE not in json.dumps(told)
    wrong: list[Any] = [{"credentials": {"key": 987654321}}, {"bindings": [binding()]}, [VALUE], VALUE]
    for each in wrong:
        with pytest.raises(CasuloError) as caught:
            call(bound.socket, "PUT", f"{route}/vault", each)
        assert VALUE not in str(caught.value) and "987654321" not in str(caught.value)
    assert call(bound.socket, "GET", route)["vault"] == {"revision": 1}  # what was wrong changed nothing
    bound.unset()
    bound.unset()
    assert call(bound.socket, "GET", route)["vault"] is None
    with pytest.raises(CasuloError):
        call(bound.socket, "PUT", "/sandboxes/nobody/vault", {})
    call(bound.socket, "DELETE", "/sandboxes/nobody/vault")
