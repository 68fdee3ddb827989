# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which command is told that it ran out of memory, when several run at once."""

from __future__ import annotations

import asyncio

from casulo.client import AsyncClient, AsyncSandbox, Connection
from support.server import Server

HOG = "python3 -c 'x = b\"x\" * 10 ** 9'"


async def test_only_the_victim_is_out_of_memory(local_server: Server) -> None:
    async with (
        AsyncClient(Connection(local_server.url, local_server.api_key)) as client,
        await AsyncSandbox.create("host", client=client, resources={"memory": "256Mi"}) as box,
    ):
        run = box.commands.run
        victim, killed, pretender, early = await asyncio.gather(
            run(f"sleep 0.3; {HOG}; exit $?"),
            run("sleep 2.5; kill -9 $$"),
            run("sleep 2.5; exit 137"),
            run("exit 137"),
        )
        assert (victim.exit_code, victim.reason) == (137, "oom")
        assert (killed.exit_code, killed.reason) == (137, "signal")
        assert (pretender.exit_code, pretender.reason) == (137, "exit")
        assert (early.exit_code, early.reason) == (137, "exit")
        direct = await run(["python3", "-c", "x = b'x' * 10 ** 9"])
        assert (direct.exit_code, direct.reason) == (137, "oom")
        hidden = await run(f"{HOG}; exit 1")
        assert (hidden.exit_code, hidden.reason) == (1, "exit")
