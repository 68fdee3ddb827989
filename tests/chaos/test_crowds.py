# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Many at once: everybody gets a sandbox of their own, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, NotFound
from support.chaos.ground import until
from support.chaos.operations import BROKEN
from support.server import Server

PATIENT = "[admission]\nmax_wait_seconds = 240\n[sandbox]\nstop_grace_seconds = 0.2\n"
POOL = "[pools.named.twenty]\nimage = 'host'\nmin = 20\nmax = 20\n"
BODY = {"image": {"uri": "host"}, "resourceLimits": {}, "timeout": 900}


def client_of(server: Server) -> AsyncClient:
    return AsyncClient(Connection(server.url, server.api_key, request_timeout=280))


@pytest.mark.timeout(900)
async def test_a_hundred_creates_at_once_all_succeed(new_server: Callable[..., Server]) -> None:
    server = await asyncio.to_thread(new_server, "local", PATIENT)
    async with client_of(server) as client:
        made = await asyncio.gather(*(client.create(BODY, timeout=280) for _ in range(100)))
        assert len({info.id for info, _ in made}) == 100
        listed = await client.list(page_size=1, states=["Running"])
        assert listed.total_items == 100
        some = made[::20]
        codes = await asyncio.gather(*(_true(client, info.id) for info, _ in some))
        assert set(codes) == {0}
        await asyncio.gather(*(client.kill(info.id) for info, _ in made))
        assert (await client.list(page_size=1)).total_items == 0


@pytest.mark.timeout(900)
async def test_b047_fifty_takers_of_twenty_and_the_manager_killed_in_mid_release(
    new_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(new_server, "fake", PATIENT + POOL)
    first = await _round(server, killed=True)
    second = await _round(server, killed=False)
    assert not first & second, "a used member was handed out again"
    async with client_of(server) as client:
        left = {item.id for item in await client.list(page_size=200)}
        assert not left, left


async def _round(server: Server, *, killed: bool) -> set[str]:
    """Fifty take one each, mark it, and let it go; the server may be killed while they do the last."""
    async with client_of(server) as client:

        async def full() -> bool:
            return (await client.pools.get("twenty")).available == 20

        await until(full, "filling the pool")
        ids = await asyncio.gather(*(_taken(client, number) for number in range(50)))
        assert [n for n, times in Counter(ids).items() if times > 1] == []
        releasing = [asyncio.create_task(_released(client, sandbox_id)) for sandbox_id in ids]
        if killed:
            await asyncio.wait(releasing[:20], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(server.crash)
        await asyncio.gather(*releasing)
    if killed:
        await asyncio.to_thread(server.start)
        async with client_of(server) as client:
            await asyncio.gather(*(_released(client, sandbox_id) for sandbox_id in ids))
    return set(ids)


async def _taken(client: AsyncClient, number: int) -> str:
    """The id of a sandbox in which nobody was before."""
    word = secrets.token_hex(8)
    request = {"timeout": 900, "extensions": {"poolRef": "twenty"}, "env": {"WORD": word}}
    info, _ = await client.create(request, timeout=280)
    async with await AsyncSandbox.connect(info.id, client=client) as box:
        script = 'cat "$HOME/mark" 2>/dev/null; echo $WORD > "$HOME/mark"; cat "$HOME/mark"'
        told = await box.commands.run(script, timeout=120)
    assert told.stdout == f"{word}\n", (number, told.stdout)
    return info.id


async def _released(client: AsyncClient, sandbox_id: str) -> None:
    try:
        await client.kill(sandbox_id)
    except NotFound:
        return
    except CasuloError as error:
        assert error.code in BROKEN, error


async def _true(client: AsyncClient, sandbox_id: str) -> int | None:
    async with await AsyncSandbox.connect(sandbox_id, client=client) as box:
        return (await box.commands.run("true", timeout=120)).exit_code
