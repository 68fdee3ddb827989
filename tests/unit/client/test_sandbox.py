# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Handles on sandboxes: who cleans up what, and creates that are never doubled. On a real server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Client, Connection, NotFound, Sandbox, TimedOut
from casulo.client.transport import Transport
from support.server import Server

from .wires import Line


@pytest.fixture
async def client(fake_server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(fake_server.url, fake_server.api_key)) as made:
        yield made


def mark() -> dict[str, str]:
    return {"mark": secrets.token_hex(8)}


async def count(client: AsyncClient, label: dict[str, str]) -> int:
    return (await client.list(metadata=label)).total_items


async def test_a_created_sandbox_goes_with_its_block_a_connected_one_stays(client: AsyncClient) -> None:
    async with await AsyncSandbox.create(client=client, metadata=mark()) as made:
        async with await AsyncSandbox.connect(made.id, client=client) as found:
            assert found.info.metadata == made.info.metadata
        assert await made.health()
    with pytest.raises(NotFound):
        await client.get(made.id)


async def test_killing_twice_is_no_error(client: AsyncClient) -> None:
    async with await AsyncSandbox.create(client=client) as made:
        await made.kill()
        await made.kill()


async def test_a_block_that_fails_still_cleans_up(client: AsyncClient) -> None:
    label = mark()
    with pytest.raises(ZeroDivisionError):
        async with await AsyncSandbox.create(client=client, metadata=label):
            raise ZeroDivisionError
    assert await count(client, label) == 0


async def test_a_create_whose_answer_was_lost_makes_one_sandbox(
    fake_server: Server, client: AsyncClient
) -> None:
    label, parts = mark(), urlsplit(fake_server.url)
    line = Line((str(parts.hostname), int(parts.port or 0)), cut_after=1)
    async with line.listening() as address:
        connection = Connection(f"http://{address}", fake_server.api_key)
        async with AsyncClient(connection) as crooked:
            made = await AsyncSandbox.create(client=crooked, metadata=label)
            assert line.connections > 1
            assert await count(client, label) == 1
            await made.kill()


async def test_leaving_during_a_create_leaves_nothing(client: AsyncClient) -> None:
    for delay in (0, 0.002, 0.01, 0.05):
        label = mark()
        making = asyncio.ensure_future(AsyncSandbox.create(client=client, metadata=label))
        await asyncio.sleep(delay)
        making.cancel()
        outcome = (await asyncio.gather(making, return_exceptions=True))[0]
        if isinstance(outcome, AsyncSandbox):
            await outcome.kill()
        assert await count(client, label) == 0


async def test_a_sandbox_that_does_not_get_ready_is_removed(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = mark()
    create = AsyncClient.create

    async def pending(self: AsyncClient, *args: object, **kwargs: object) -> object:
        from dataclasses import replace

        info, endpoint = await create(self, *args, **kwargs)  # type: ignore[arg-type]
        await self.pause(info.id)  # it never gets to Running from here
        return replace(info, state="Pending"), endpoint

    monkeypatch.setattr(AsyncClient, "create", pending)
    with pytest.raises(TimedOut, match="not Running"):
        await AsyncSandbox.create(client=client, metadata=label, ready_timeout=0.3)
    assert await count(client, label) == 0


async def test_pause_resume_renew_and_metadata(client: AsyncClient) -> None:
    async with await AsyncSandbox.create(client=client, metadata={"a": "1", "b": "2"}) as box:
        await box.pause()
        assert (await box.refresh()).state == "Paused"
        await box.resume()
        assert (await box.commands.run("echo back")).stdout == "back\n"
        before = box.info.expires_at
        assert before is not None
        assert await box.renew(3600) > before
        assert (await box.patch_metadata({"a": None, "c": "3"})).metadata == {"b": "2", "c": "3"}


async def test_the_daemon_is_also_reached_through_the_server(fake_server: Server) -> None:
    connection = Connection(fake_server.url, fake_server.api_key, use_server_proxy=True)
    async with await AsyncSandbox.create(connection=connection) as box:
        assert (await box.commands.run("echo proxied")).stdout == "proxied\n"
        assert "/proxy/" in (await box._channel.endpoint()).url


async def test_awkward_metadata_filters(client: AsyncClient) -> None:
    label = {"team": "a.b_c-d", **mark()}
    async with await AsyncSandbox.create(client=client, metadata=label):
        assert await count(client, label) == 1
        assert await count(client, {**label, "team": "other"}) == 0
        assert await count(client, {"a=b&c": "100% x"}) == 0


def test_the_sync_face(fake_server: Server) -> None:
    heard: list[str] = []
    with Client(Connection(fake_server.url, fake_server.api_key)) as client:
        assert client.health()
        with Sandbox.create(client=client, metadata=mark()) as box:
            result = box.commands.run("echo one; echo two", on_stdout=heard.append)
            assert result.stdout == "".join(heard) == "one\ntwo\n"
            items = list(box.commands.stream("echo hi"))
            assert [type(item).__name__ for item in items] == ["Started", "Output", "Exit"]
            assert Sandbox.get(box.id, client=client).state == "Running"
        assert box.id not in [info.id for info in client.list()]


async def test_the_wrong_address_says_so() -> None:
    transport = Transport(1.0, ())
    client = AsyncClient(Connection("http://127.0.0.1:1"), retry_pauses=())
    from casulo.client import Unreachable

    with pytest.raises(Unreachable, match="no connection"):
        await client.health()
    await transport.close()
