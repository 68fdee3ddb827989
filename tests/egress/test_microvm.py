# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Virtual machines under policies: from the first packet, over pause, snapshot and a killed server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support import microvm, sharing
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

pytestmark = pytest.mark.timeout(microvm.SECONDS)

RULES = [{"action": "allow", "target": "good.test"}]
NAMES = ("good.test", "other.test")


@pytest.fixture(scope="module", params=["microvm"])
def machines(request: pytest.FixtureRequest, world: World, tmp_path_factory: Any) -> Iterator[Server]:
    """A server whose machines' internet is the small one."""
    if reason := microvm.why_not():
        cannot_run(reason)
    settings = world.settings + microvm.tables(sharing.network(9), "")
    server = Server(tmp_path_factory.mktemp("server-egress-microvm"), "microvm", settings).start()
    yield server
    server.delete_all()
    server.stop()


async def reached(box: AsyncSandbox) -> list[bool]:
    return [(await box.commands.run(f"curl -sSf -m 20 http://{name}/", timeout=60)).ok for name in NAMES]


CLIENTS = {
    "curl": "curl -sS -m 60 https://other.test/headers",
    "wget": "wget -qO- -T 60 https://other.test/headers",
    "python3": "python3 -c 'import urllib.request as u; "
    'print(u.urlopen("https://other.test/headers", timeout=60).read().decode())\'',
    "pip3": "python3 -c 'from pip._vendor import requests as r; "
    'print(r.get("https://other.test/headers").text)\'',
    "node": "node -e 'fetch(\"https://other.test/headers\").then(r => r.text()).then(console.log)'",
}


async def injected(box: AsyncSandbox, client: str = "curl") -> bool:
    said = await box.commands.run(f"{CLIENTS[client]} 2>&1", timeout=150)
    return "Bearer [REDACTED]" in said.stdout


async def test_a_machine_reaches_what_its_policy_names(machines: Server, world: World) -> None:
    connection = Connection(machines.url, machines.api_key, request_timeout=microvm.SECONDS)
    script = "curl -sm 20 good.test >/root/good; curl -sm 5 other.test >/root/other; sleep 9999"
    async with AsyncClient(connection) as client:
        box = await AsyncSandbox.create(
            "host",
            entrypoint=["sh", "-c", script],
            network_policy={"egress": RULES},
            credential_proxy=True,
            client=client,
        )
        assert await reached(box) == [True, False]
        assert not (await box.commands.run(f"curl -sSf -m 5 http://{world.at(81)}/", timeout=60)).ok
        done = await box.commands.run(
            "until [ -e /root/other ]; do sleep 0.2; done; wc -c /root/good /root/other"
        )
        good, other = (int(line.split()[0]) for line in done.stdout.splitlines()[:2])
        assert good > 0 and other == 0, done.stdout
        await box.egress.allow("other.test")
        assert await reached(box) == [True, True]
        await box.vault.set("key", "s3cr3t-of-machines")
        await box.vault.bind("other", "other.test", credential="key", redact_bodies=True)
        found = [name for name in CLIENTS if shutil.which(name)]  # the image `host` has what is here
        assert {name: await injected(box, name) for name in found} == dict.fromkeys(found, True)
        git = await box.commands.run("git ls-remote https://other.test/headers/x.git 2>&1", timeout=150)
        assert any("/headers/x.git/info/refs" in line[1] for line in world.heard()), git
        await box.pause()
        await box.egress.deny("good.test")
        machines.crash()
    machines.start()
    connection = Connection(machines.url, machines.api_key, request_timeout=microvm.SECONDS)
    async with AsyncClient(connection) as client:
        box = await AsyncSandbox.connect(box.id, client=client)
        await box.resume()
        assert await reached(box) == [False, True] and await injected(box)
        copy = await AsyncSandbox.create(snapshot=await box.snapshot(), client=client)
        assert await reached(copy) == [False, True] and await injected(copy)
        await copy.kill()
        await box.kill()
