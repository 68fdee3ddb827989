# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which command is told that it ran out of memory, when several run at once."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection, InvalidRequest
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
        assert await _hint(box, f"{HOG}; exit 1") and not await _hint(box, "exit 1")


async def _hint(box: AsyncSandbox, command: str) -> bool:
    """Whether the end of a command says that the memory limit was hit."""
    reached = await box.endpoint(44772)
    async with httpx.AsyncClient(headers=reached.headers, timeout=20) as client:
        answer = await client.post(f"{reached.url}/command", json={"command": command})
    return '"memory_limit_hit":true' in answer.text


async def test_users_and_owners_that_do_not_exist_are_named(local_server: Server) -> None:
    async with (
        AsyncClient(Connection(local_server.url, local_server.api_key)) as client,
        await AsyncSandbox.create("host", client=client) as box,
    ):
        for uid, gid, named in ((70000, None, "uid 70000"), (0, 70001, "gid 70001")):
            with pytest.raises(InvalidRequest, match=named):
                await box.commands.run("id", uid=uid, gid=gid)
        reached = await box.endpoint(44772)
        async with httpx.AsyncClient(headers=reached.headers, timeout=20) as direct:
            for kind in ("owner", "group"):
                wanted = {"/tmp": {"mode": 777, kind: "70000"}}
                answer = await direct.post(f"{reached.url}/files/permissions", json=wanted)
                assert answer.status_code == 400 and "70000" in answer.json()["message"]
