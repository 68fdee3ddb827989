# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What listens inside is reached from outside unchanged, directly and through the server."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.records import Endpoint
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import NotFound
from support.server import Server

APP = Path(__file__).with_name("app.py")
TEXT = b"the same words again and again " * 200


@dataclass
class Web:
    """An application inside a sandbox, and the two ways to it."""

    box: AsyncSandbox
    server: Server
    port: int
    direct: Endpoint
    proxied: Endpoint


async def _serve(server: Server, box: AsyncSandbox) -> Web:
    # The fake runtime shares the machine's ports.
    port = random.randrange(20_000, 30_000)
    await box.files.write(f"/tmp/app-{port}.py", APP.read_bytes())
    await box.commands.start(["python3", f"/tmp/app-{port}.py", str(port)])
    probe = f"until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'; do :; done"
    await box.commands.run(probe + " 2>/dev/null", timeout=20)
    direct = await box.endpoint(port)
    return Web(box, server, port, direct, await box.endpoint(port, server_proxy=True))


@pytest.fixture
async def web(server: Server, box: AsyncSandbox) -> Web:
    return await _serve(server, box)


@pytest.fixture
async def strict_web(new_server, runtime_name: str) -> AsyncIterator[Web]:
    """The same behind a proxy with short limits."""
    server: Server = new_server(
        runtime_name, extra="[proxy]\nrequest_timeout_seconds = 2\nmax_connections = 4\n"
    )
    async with (
        AsyncClient(Connection(server.url, server.api_key)) as client,
        await AsyncSandbox.create(server.image, client=client) as box,
    ):
        yield await _serve(server, box)


@pytest.fixture(params=["direct", "proxied"])
def way(request: pytest.FixtureRequest, web: Web) -> Endpoint:
    found: Endpoint = getattr(web, request.param)
    return found


def _browser(endpoint: Endpoint, timeout: float = 10) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=endpoint.url, headers=dict(endpoint.headers), timeout=timeout, trust_env=False
    )


async def test_both_forms_of_endpoints(web: Web) -> None:
    assert "://" not in web.direct.address and web.direct.address.endswith(f"/proxy/{web.port}")
    assert web.proxied.address == f"{web.server.domain}/v1/sandboxes/{web.box.id}/proxy/{web.port}"
    with pytest.raises(NotFound):
        await web.box._client.endpoint("no-such-sandbox", 8080)
    for port in (0, 65536):
        assert web.server.request("GET", f"/v1/sandboxes/{web.box.id}/endpoints/{port}").status_code == 400


async def test_path_and_query_arrive_unchanged(way: Endpoint) -> None:
    target = "/echo/a%2Fb/c%20d?x=1&x=2&y=%2520&z"
    async with _browser(way) as browser:
        told = (await browser.get(way.url + target)).json()
    assert told["path"] == target


async def test_secrets_do_not_reach_the_application(web: Web) -> None:
    sent = {
        "OPEN-SANDBOX-API-KEY": web.server.api_key,
        "Authorization": "Bearer mine",
        "Cookie": "a=b",
        "X-Kept": "1",
    }
    async with _browser(web.proxied) as browser:
        names = {name.lower() for name, _ in (await browser.get("/echo", headers=sent)).json()["headers"]}
    assert "x-kept" in names
    assert not names & {"open-sandbox-api-key", "authorization", "cookie", "x-execd-access-token"}


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
@pytest.mark.parametrize("form", ["", "/chunked"], ids=["length", "chunked"])
async def test_b029_encoded_bodies_are_untouched(way: Endpoint, encoding: str, form: str) -> None:
    async with _browser(way) as browser, browser.stream("GET", f"/encoded/{encoding}{form}") as answer:
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert answer.headers["content-encoding"] == encoding
    assert answer.headers.get_list("set-cookie") == ["a=1"]
    if encoding == "gzip":
        assert gzip.decompress(raw) == TEXT
    if encoding == "br":
        assert raw == b"\x8b\x02\x80opaque\x03"
    if not form:
        assert int(answer.headers["content-length"]) == len(raw)


async def test_b029_head_no_content_not_modified_and_ranges(way: Endpoint) -> None:
    async with _browser(way) as browser:
        head = await browser.head("/encoded/gzip")
        assert int(head.headers["content-length"]) > 0 and head.content == b""
        assert (await browser.get("/status/204")).content == b""
        unchanged = await browser.get("/status/304")
        assert unchanged.status_code == 304 and unchanged.headers["etag"] == '"tag"'
        part = await browser.get("/range", headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, TEXT[5:10])
        assert part.headers["content-range"] == f"bytes 5-9/{len(TEXT)}"


async def test_b031_aborted_downloads_do_not_drain_the_pool(strict_web: Web) -> None:
    server = strict_web.server
    async with _browser(strict_web.proxied) as browser:
        assert (await browser.get("/echo")).status_code == 200
        before = _open_files(server)
        for read_first in (False, True):
            for _ in range(10):
                await asyncio.gather(*(_abort(strict_web, read_first) for _ in range(10)))
        assert (await browser.get("/echo")).status_code == 200
    for _ in range(50):
        if _open_files(server) <= before + 4:
            break
        await asyncio.sleep(0.1)
    assert _open_files(server) <= before + 4


async def _abort(web: Web, read_first: bool) -> None:
    """Ask for a large body and go away, before or in the middle of it."""
    host, _, rest = web.proxied.address.partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(f"GET /{rest}/large HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await writer.drain()
    if read_first:
        await reader.readexactly(100_000)
    writer.transport.abort()


def _open_files(server: Server) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


async def test_b033_long_silence_is_not_cut(strict_web: Web) -> None:
    """The proxy's limit is 2 s; a command and a stream are silent for longer."""
    client = AsyncClient(Connection(strict_web.server.url, strict_web.server.api_key, use_server_proxy=True))
    async with client:
        box = await AsyncSandbox.connect(strict_web.box.id, client=client)
        silent = asyncio.create_task(box.commands.run("sleep 4; echo end"))
        async with _browser(strict_web.proxied) as browser:
            assert (await browser.get("/slow/4")).content == b"firstlast"
        assert (await silent).stdout == "end\n"


async def test_b033_request_that_is_never_answered_ends_with_504(strict_web: Web) -> None:
    begun = time.monotonic()
    async with _browser(strict_web.proxied) as browser:
        answer = await browser.get("/never")
    assert answer.status_code == 504 and answer.json()["code"] == "BACKEND_TIMEOUT"
    assert time.monotonic() - begun > 1.5


async def test_backend_that_is_not_there_is_502(box: AsyncSandbox) -> None:
    endpoint = await box.endpoint(39_999, server_proxy=True)
    async with _browser(endpoint) as browser:
        assert (await browser.get("/")).status_code == 502


async def test_backend_that_breaks_off_is_never_a_whole_answer(web: Web) -> None:
    async with _browser(web.proxied) as browser:
        with pytest.raises(httpx.HTTPError):
            answer = await browser.get("/reset")
            answer.raise_for_status()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_b035_host_header_rules(web: Web, name: str) -> None:
    domain = f"{name}:{web.server.domain.rpartition(':')[2]}"
    url = web.proxied.url.replace(web.server.domain, domain)
    async with httpx.AsyncClient(timeout=10, trust_env=False) as browser:
        told = dict((await browser.get(f"{url}/echo", headers=dict(web.proxied.headers))).json()["headers"])
    seen = {key.lower(): value for key, value in told.items()}
    host = seen["host"].partition(":")[0]
    assert host == "localhost" or host.replace(".", "").isdigit()
    assert seen["x-forwarded-host"] == domain
    assert seen["x-forwarded-proto"] == "http"


async def test_b037_large_headers_pass_or_are_refused(web: Web) -> None:
    async with _browser(web.proxied) as browser:
        large = await browser.get("/echo", headers={"Cookie": "c=" + "x" * 60_000})
        many = await browser.get("/echo", headers={f"X-Many-{n}": "v" for n in range(200)})
    assert large.status_code in (200, 431)
    assert many.status_code in (200, 431)
    if many.status_code == 200:
        assert sum(name.lower().startswith("x-many-") for name, _ in many.json()["headers"]) == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nX-Value: one\nX-Secret: 1\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nBad Name: 1\r\n\r\n",
    ],
    ids=["bare-lf", "two-lengths", "bad-name"],
)
async def test_b037_malformed_heads_are_refused(web: Web, head: str) -> None:
    host, _, rest = web.proxied.address.partition("/")
    answer = await asyncio.to_thread(_raw, host, head.format(path=f"{rest}/echo", host=host))
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]


def _raw(host: str, text: str) -> bytes:
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port)), timeout=5) as connection:
        connection.sendall(text.encode())
        return connection.recv(4096)


async def test_websockets_pass_both_ways(server: Server, box: AsyncSandbox) -> None:
    """The sandbox's own daemon has a terminal over WebSocket, so no library is needed inside."""
    endpoint = await box.endpoint(44772, server_proxy=True)
    async with _browser(endpoint) as browser:
        made = await browser.post("/pty", json={})
    assert made.status_code == 201, made.text
    url = f"ws://{endpoint.address}/pty/{made.json()['session_id']}/ws"
    async with websockets.connect(url, additional_headers=dict(endpoint.headers), proxy=None) as terminal:
        await terminal.send(b"\x00echo $((40+2))\n")
        seen = b""
        async with asyncio.timeout(10):
            while b"42" not in seen:
                message = await terminal.recv()
                seen += message if isinstance(message, bytes) else b""
