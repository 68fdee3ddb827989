# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""WebSockets through the server proxy: messages, subprotocols, origins and the way they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from casulo.model.errors import Code
from integration.api.harness import Api

App = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def _app(api: Api, app: App, **options: object) -> AsyncIterator[str]:
    """A WebSocket application behind a new sandbox; yields the address of the sandbox's port 80."""
    async with serve(app, "127.0.0.1", 0, max_size=None, compression=None, **options) as server:  # type: ignore[arg-type]
        usual, api.runtime.port = api.runtime.port, server.sockets[0].getsockname()[1]
        try:
            box = await asyncio.to_thread(api.sandbox)
        finally:
            api.runtime.port = usual
        yield f"ws://127.0.0.1:{api.port}/v1/sandboxes/{box}/proxy/80"


def _caller(url: str, **options: object) -> connect:
    return connect(url, proxy=None, max_size=None, **options)  # type: ignore[arg-type]


async def _echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def _ending(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(5):
            await connection.recv()
    return connection.close_code or 0, connection.close_reason or ""


async def test_messages_pass_as_they_are(api: Api) -> None:
    large = os.urandom(20 * 1024 * 1024)
    messages: list[str | bytes] = [
        "text",
        "snow\u2603\U0001f600",
        b"\x00\xff",
        "",
        b"",
        "\u2028" * 100_000,
        large,
    ]
    async with _app(api, _echo) as url, _caller(url) as connection:
        for message in messages:
            await connection.send(message)
            assert await connection.recv() == message


async def test_messages_in_both_directions_at_once(api: Api) -> None:
    async def talk(connection: ServerConnection) -> None:
        for number in range(200):
            await connection.send(str(number))
        await _echo(connection)

    async with _app(api, talk) as url, _caller(url) as connection:
        for number in range(200):
            await connection.send(f"mine {number}")
        received = [await connection.recv() for _ in range(400)]
    assert received[:200] == [str(n) for n in range(200)]
    assert received[200:] == [f"mine {n}" for n in range(200)]


async def test_handshake_headers(api: Api) -> None:
    seen: list[Request] = []

    def look(_: ServerConnection, request: Request) -> None:
        seen.append(request)

    async with _app(
        api, _echo, process_request=look, subprotocols=[Subprotocol("second"), Subprotocol("first")]
    ) as url:
        async with _caller(
            url + "/a%2Fb//c?x=1&x=%32",
            origin="http://page.example",
            subprotocols=[Subprotocol("first"), Subprotocol("second")],
            additional_headers={
                "Cookie": "c=" + "x" * 20_000,
                "Authorization": "Bearer x",
                "OPEN-SANDBOX-API-KEY": "k",
                "X-EXECD-ACCESS-TOKEN": "stolen",
                "X-Mine": "1",
            },
        ) as connection:
            assert connection.subprotocol == "second"  # the application's preference
        async with _caller(url) as connection:
            assert connection.subprotocol is None
    request = seen[0]
    assert request.path == "/proxy/80/a%2Fb//c?x=1&x=%32"
    assert request.headers.get_all("Origin") == ["http://page.example"]
    assert request.headers["Sec-WebSocket-Protocol"] == "first, second"
    assert request.headers["Host"] == "localhost"
    assert request.headers["X-Forwarded-Host"] == f"127.0.0.1:{api.port}"
    assert request.headers["X-Forwarded-Proto"] == "http" and request.headers["X-Mine"] == "1"
    assert request.headers.get_all("X-EXECD-ACCESS-TOKEN") == ["the-token"]
    assert not {"cookie", "authorization", "open-sandbox-api-key"} & {n.lower() for n in request.headers}


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, ""), (1000, "done"), (1001, "bye"), (3456, "own"), (4999, "\u2603" * 40)]
)
async def test_the_sandboxs_close_reaches_the_caller(api: Api, code: int, reason: str) -> None:
    async def end(connection: ServerConnection) -> None:
        await connection.send("last words")
        await connection.close(code, reason)

    async with _app(api, end) as url, _caller(url) as connection:
        assert await connection.recv() == "last words"
        assert await _ending(connection) == (code, reason)


async def test_the_callers_close_reaches_the_sandbox(api: Api) -> None:
    endings: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()

    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()
        endings.put_nowait((connection.close_code, connection.close_reason))

    async with _app(api, wait) as url:
        for code, reason in ((1000, "done"), (3001, "own reason"), (1005, "")):
            connection = await _caller(url)
            await connection.close(*((None, "") if code == 1005 else (code, reason)))  # type: ignore[arg-type]
            async with asyncio.timeout(5):
                assert await endings.get() == (code, reason)
        connection = await _caller(url)
        connection.transport.abort()
        async with asyncio.timeout(5):
            await endings.get()


async def test_a_sandbox_that_breaks_off(api: Api) -> None:
    async def vanish(connection: ServerConnection) -> None:
        connection.transport.abort()

    async with _app(api, vanish) as url, _caller(url) as connection:
        assert (await _ending(connection))[0] == 1011


async def test_a_refused_handshake_is_a_policy_violation(api: Api) -> None:
    def refuse(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(403, "no")

    async with _app(api, _echo, process_request=refuse) as url, _caller(url) as connection:
        code, reason = await _ending(connection)
    assert code == 1008 and "403" in reason


async def test_an_unreachable_sandbox(api: Api) -> None:
    async with _app(api, _echo) as url:
        pass
    async with _caller(url) as connection:
        assert (await _ending(connection))[0] == 1011


async def test_nobody_on_the_port(api: Api) -> None:
    def bad_gateway(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(502, "Bad Gateway")

    async with _app(api, _echo, process_request=bad_gateway) as url, _caller(url) as connection:
        assert (await _ending(connection))[0] == 1011


async def test_an_unknown_sandbox(api: Api) -> None:
    async with _caller(f"ws://127.0.0.1:{api.port}/sandboxes/none/proxy/80") as connection:
        code, reason = await _ending(connection)
    assert code == 1008 and reason.startswith(Code.SANDBOX_NOT_FOUND)


async def test_b033_silence_is_not_cut(api: Api) -> None:
    """The request limit of this server is 1 s."""
    async with _app(api, _echo) as url, _caller(url) as connection:
        await asyncio.sleep(1.5)
        await connection.send("still there")
        assert await connection.recv() == "still there"


async def test_handshakes_that_are_too_large_are_refused(api: Api, box: str) -> None:
    def talk() -> bytes:
        with api.connect() as connection:
            connection.settimeout(5)
            connection.sendall(
                b"GET /sandboxes/%b/proxy/80 HTTP/1.1\r\nHost: x\r\n"
                b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nX: %b\r\n\r\n"
                % (box.encode(), b"x" * 20_000)
            )
            try:
                return connection.recv(65536)
            except TimeoutError:
                return b"nothing"

    assert (await asyncio.to_thread(talk)).startswith(b"HTTP/1.1 431 ")


async def test_no_other_path_speaks_websocket(api: Api) -> None:
    with pytest.raises(Exception, match=r"403|404"):
        async with _caller(f"ws://127.0.0.1:{api.port}/v1/sandboxes"):
            pass
