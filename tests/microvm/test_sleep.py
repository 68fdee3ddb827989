# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A machine that stood still for two minutes (B055): its clock, its timers, its listener, who talks to it.

It was paused when the first machine of these tests was asked for, so most of that time went by already.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection
from support import microvm
from support.microvm import Asleep
from support.server import Server

pytestmark = pytest.mark.timeout(microvm.SECONDS)

SECONDS = 120


@pytest.fixture
async def client(machines: Server) -> AsyncIterator[AsyncClient]:
    connection = Connection(machines.url, machines.api_key, request_timeout=microvm.SECONDS)
    async with AsyncClient(connection) as made:
        yield made


async def test_twenty_children_at_once_are_twenty_sandboxes(client: AsyncClient) -> None:
    """None has an id, a token, an address or a random number of another, and all go on with its memory."""
    ask = (
        "cat /proc/sys/kernel/random/uuid /etc/machine-id /etc/hostname;"
        "head -c 16 /dev/urandom | od -An -tx8;"
        "cat /sys/class/net/eth0/address; hostname -I; echo $OPENSANDBOX_ID; cat /root/mark;"
        "kill -0 $(cat /root/pid) && echo alive; echo $OPENSANDBOX_ID > /root/mark"
    )
    small = {"memory": "128Mi", "disk": "64Mi"}
    async with await AsyncSandbox.create("host", resources=small, client=client) as parent:
        await parent.commands.run("sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid")
        await parent.commands.run("echo parent > /root/mark")
        children = await parent.fork(20)
        try:
            told = []
            for box in (parent, *children):
                told.append((await box.commands.run(ask)).check().stdout.split("\n"))
            columns = list(zip(*told, strict=True))
            assert all(len(set(column)) == 21 for column in columns[:7]), columns[:7]
            assert set(columns[7]) == {"parent"} and set(columns[8]) == {"alive"}
            assert (await children[0].refresh()).lineage == (parent.id,)
            assert not (await client.snapshots.list(sandbox_id=parent.id)).items
            ends = [await box.endpoint(44772) for box in (parent, *children)]
            assert len({str(each.headers) for each in ends}) == len({each.url for each in ends}) == 21
        finally:
            for box in children:
                await box.kill()


async def test_two_minutes_are_nothing_to_it(client: AsyncClient, asleep: Asleep, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    time.sleep(max(0.0, asleep.since + SECONDS - time.time()))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    await client.resume(asleep.box)
    box = await AsyncSandbox.connect(asleep.box, client=client)
    early = (await box.commands.run("cat /root/fired; wc -l < /root/ticks")).stdout.split()
    late = [await _late(box) for _ in range(2)]
    assert late[-1] < 1, late
    assert len(early) == 1 or int(early[0]) - asleep.since > SECONDS - 1, early
    assert int(early[-1]) - asleep.ticks < SECONDS / microvm.TICKS / 4, "timers fired in a burst"
    answer = await box.commands.run("curl -s localhost:8080/file")
    assert answer.stdout == "served\n", answer
    endpoint = await box.endpoint(8080)
    headers = [word for name, value in endpoint.headers.items() for word in ("-H", f"{name}: {value}")]
    reached = subprocess.run(["curl", "-s", *headers, f"{endpoint.url}/file"], capture_output=True, text=True)
    assert reached.stdout == "served\n", reached
    for path in (key, certificate):
        await box.files.write(f"/root/{path.name}", path.read_bytes())
    handshake = await box.commands.run(
        "cd /root; openssl s_server -accept 8443 -key key.pem -cert certificate.pem -www >/dev/null 2>&1 &"
        "sleep 3; for i in 1 2 3 4 5; do curl -s -o /dev/null --cacert /root/certificate.pem https://localhost:8443/"
        " && exit 0; sleep 2; done; exit 1",
        timeout=120,
    )
    assert handshake.exit_code == 0, handshake


async def _late(box: AsyncSandbox) -> float:
    """How far the guest's clock is off, as well as can be seen through a command."""
    before = time.time()
    said = float((await box.commands.run("date +%s.%N")).stdout)
    after = time.time()
    return max(0.0, before - said, said - after)
