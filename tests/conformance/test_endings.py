# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Entrypoints, how they end, and what survives a server that was killed."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.records import SandboxInfo
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import NotFound
from support.server import Server


async def _ended(client: AsyncClient, sandbox_id: str) -> SandboxInfo:
    for _ in range(200):
        info = await client.get(sandbox_id)
        if info.state in ("Terminated", "Failed"):
            return info
        await asyncio.sleep(0.05)
    raise AssertionError(f"still {info.state}")


@pytest.mark.parametrize(("code", "state"), [(0, "Terminated"), (5, "Failed")])
async def test_b081_exit_is_reflected_with_its_code(
    client: AsyncClient, code: int, state: str, image: str
) -> None:
    entrypoint = ["sh", "-c", f"sleep 0.3; exit {code}"]
    async with await AsyncSandbox.create(image, entrypoint=entrypoint, client=client) as box:
        info = await _ended(client, box.id)
        assert info.state == state
        assert code == 0 or str(code) in info.message


async def test_b081_entrypoint_that_forks_away(client: AsyncClient, image: str) -> None:
    entrypoint = ["sh", "-c", "setsid sleep 1000 & exit 0"]
    async with await AsyncSandbox.create(image, entrypoint=entrypoint, client=client) as box:
        assert (await _ended(client, box.id)).state == "Terminated"


async def test_b081_arguments_and_environment_are_not_split(client: AsyncClient, image: str) -> None:
    mark = f"/tmp/argv-{uuid.uuid4().hex}"
    script = f'printf "%s|" "$@" "$SPACED" > {mark}; exec sleep 1000'
    entrypoint = ["sh", "-c", script, "zero", "a b", "*", "$HOME", ""]
    async with await AsyncSandbox.create(
        image, entrypoint=entrypoint, env={"SPACED": " two  words "}, client=client
    ) as box:
        for _ in range(100):
            if await box.files.exists(mark) and (await box.files.read(mark)).count("|") == 5:
                break
            await asyncio.sleep(0.02)
        assert await box.files.read(mark) == "a b|*|$HOME|| two  words |"
        inside = await box.commands.run('printf "%s" "$SPACED"')
        assert inside.stdout == " two  words "


async def test_b081_missing_entrypoint_is_a_typed_error(client: AsyncClient, image: str) -> None:
    with pytest.raises(Exception, match="no-such-entrypoint") as caught:
        await AsyncSandbox.create(image, entrypoint=["/no-such-entrypoint"], client=client)
    assert caught.value.code == "SANDBOX::INVALID_ENTRYPOINT"  # type: ignore[attr-defined]


async def test_b013_entrypoint_gets_term_and_its_code_is_kept(client: AsyncClient, image: str) -> None:
    mark = f"/tmp/bye-{uuid.uuid4().hex}"
    script = f"trap 'echo bye > {mark}; exit 7' TERM; echo $$ > {mark}.pid; while :; do sleep 0.05; done"
    async with await AsyncSandbox.create(image, entrypoint=["sh", "-c", script], client=client) as box:
        await box.commands.run(f"until test -s {mark}.pid; do sleep 0.02; done", timeout=10)
        # The command and the daemon end with the entrypoint, so its own end may not be told.
        with contextlib.suppress(Exception):
            await box.commands.run(f"kill -TERM $(cat {mark}.pid)", timeout=5)
        info = await _ended(client, box.id)
        assert info.state == "Failed" and "7" in info.message


async def test_b013_stop_ends_before_the_grace_limit(client: AsyncClient, image: str) -> None:
    script = "trap 'exit 7' TERM; while :; do sleep 0.05; done"
    box = await AsyncSandbox.create(image, entrypoint=["sh", "-c", script], client=client)
    begun = time.monotonic()
    await box.kill()
    assert time.monotonic() - begun < 4.5, "the grace is 5 s"


@pytest.mark.parametrize("seconds_down", [0.0, 2.5])
async def test_b041_restart_keeps_renewed_expiry(new_server, runtime_name: str, seconds_down: float) -> None:
    server: Server = new_server(runtime_name)
    connection = Connection(server.url, server.api_key)
    async with AsyncClient(connection) as client:
        kept = await AsyncSandbox.create(server.image, timeout=60, client=client)
        await kept.commands.run("echo before > /tmp/kept")
        renewed = await kept.renew(600)
        short = await AsyncSandbox.create(server.image, client=client)
        await short.renew(2)
        server.crash()
    await asyncio.sleep(seconds_down)
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        again = await AsyncSandbox.connect(kept.id, client=client)
        assert again.info.state == "Running" and again.info.expires_at == renewed
        assert (await again.commands.run("cat /tmp/kept")).stdout == "before\n"
        deadline = time.monotonic() + 5
        with pytest.raises(NotFound):
            while time.monotonic() < deadline:
                await client.get(short.id)
                await asyncio.sleep(0.1)
        await client.kill(kept.id)


async def test_commands_survive_the_servers_death(new_server, runtime_name: str) -> None:
    server: Server = new_server(runtime_name)
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        box = await AsyncSandbox.create(server.image, client=client)
        running = asyncio.create_task(box.commands.run("for i in 1 2 3 4; do echo $i; sleep 0.4; done"))
        await asyncio.sleep(0.3)
        server.crash()
        assert (await running).stdout == "1\n2\n3\n4\n"
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        found = await AsyncSandbox.connect(box.id, client=client)
        assert (await found.commands.run("echo back")).stdout == "back\n"
