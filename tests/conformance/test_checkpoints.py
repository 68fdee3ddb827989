# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots that hold a sandbox's processes, where its kernel can be written down."""

from __future__ import annotations

import asyncio

import pytest

from casulo.client import AsyncClient, AsyncSandbox, CasuloError, Connection
from support.server import Server

MEMORY = {"casulo.snapshot.memory": "true"}
COUNTER = "n=0; while :; do n=$((n+1)); echo $n > /tmp/m; mv /tmp/m /tmp/n; sleep 0.1; done"
READ = "cat /tmp/n; sleep 1; cat /tmp/n"


async def test_the_processes_of_a_snapshot_go_on(gvisor_server: Server) -> None:
    async with (
        AsyncClient(Connection(gvisor_server.url, gvisor_server.api_key)) as client,
        await AsyncSandbox.create("host", extensions=MEMORY, client=client) as box,
    ):
        await box.commands.start(COUNTER)
        await box.files.write("/workspace/file", "kept")
        await asyncio.sleep(1)
        snapshot = await box.snapshot("with-memory")
        await _goes_on(box)
        assert (await box.refresh()).state == "Running"
        for _ in range(2):
            async with await AsyncSandbox.create(snapshot=snapshot.id, client=client) as again:
                await _goes_on(again)
                assert await again.files.read("/workspace/file") == "kept"
                assert (await again.commands.run("echo $OPENSANDBOX_ID")).stdout.strip() == again.id
                stranger = {
                    "X-EXECD-ACCESS-TOKEN": (await box.endpoint(44772)).headers["X-EXECD-ACCESS-TOKEN"]
                }
                assert (await again.endpoint(44772)).headers != stranger


async def _goes_on(box: AsyncSandbox) -> None:
    before, after = map(int, (await box.commands.run(READ)).stdout.split())
    assert after > before > 2


async def test_open_connections_are_refused_and_nothing_happens(gvisor_server: Server) -> None:
    async with (
        AsyncClient(Connection(gvisor_server.url, gvisor_server.api_key)) as client,
        await AsyncSandbox.create("host", extensions=MEMORY, client=client) as box,
    ):
        await box.commands.start("exec python3 -m http.server 8000")
        while not (await box.commands.run("grep -qi ':1F40 ' /proc/net/tcp /proc/net/tcp6")).ok:
            await asyncio.sleep(0.1)
        with pytest.raises(CasuloError, match="TCP"):
            await box.snapshot("refused")
        assert (await box.commands.run("echo alive")).stdout == "alive\n"


async def test_containers_refuse_it(local_server: Server, gvisor_server: Server) -> None:
    for server, isolation in ((local_server, None), (gvisor_server, "container")):
        async with AsyncClient(Connection(server.url, server.api_key)) as client:
            with pytest.raises(CasuloError, match="memory"):
                await AsyncSandbox.create("host", extensions=MEMORY, isolation=isolation, client=client)
