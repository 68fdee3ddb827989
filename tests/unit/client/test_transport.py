# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""HTTP under bad networks: what is repeated, what is not, and which error says what."""

from __future__ import annotations

import asyncio
import time

import pytest

from casulo.client.faults import Disconnected, Unreachable
from casulo.client.transport import Transport
from casulo.model.errors import NotFound, RuntimeFailure, TimedOut, Unavailable

from .wires import OK, scripted, serving

PAUSES = (0.01, 0.01)
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
GONE = b'HTTP/1.1 404 No\r\nContent-Length: 28\r\n\r\n{"code": "C","message": "m"}'
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"


async def call(url: str, method: str = "GET", repeatable: bool | None = None) -> bytes:
    transport = Transport(5.0, PAUSES)
    try:
        return (await transport.request(method, url + "/x", headers={}, repeatable=repeatable)).body
    finally:
        await transport.close()


@pytest.mark.parametrize("fault", [b"", CUT, BUSY], ids=["hang-up", "cut", "busy"])
async def test_safe_requests_are_repeated(fault: bytes) -> None:
    async with scripted([fault, fault, OK]) as (url, heads):
        assert await call(url) == b"ok"
        assert len(heads) == 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [(b"", Disconnected), (CUT, Disconnected), (BUSY, Unavailable)],
    ids=["hang-up", "cut", "busy"],
)
async def test_a_post_is_sent_once(fault: bytes, error: type[Exception]) -> None:
    async with scripted([fault, OK]) as (url, heads):
        with pytest.raises(error):
            await call(url, "POST")
        assert len(heads) == 1


async def test_a_post_that_says_it_may_be_repeated_is() -> None:
    async with scripted([b"", OK]) as (url, heads):
        assert await call(url, "POST", repeatable=True) == b"ok"
        assert len(heads) == 2


async def test_other_failures_are_not_repeated() -> None:
    async with scripted([GONE, OK]) as (url, heads):
        with pytest.raises(NotFound) as caught:
            await call(url)
        assert (caught.value.code, len(heads)) == ("C", 1)


async def test_the_last_failure_is_told() -> None:
    async with scripted([BUSY, BUSY, BUSY]) as (url, heads):
        with pytest.raises(Unavailable):
            await call(url)
        assert len(heads) == 3


async def test_retry_after_is_waited_for() -> None:
    busy = BUSY.replace(b"Content-Length", b"Retry-After: 0.3\r\nContent-Length")
    async with scripted([busy, OK]) as (url, _):
        began = time.monotonic()
        await call(url)
        assert time.monotonic() - began >= 0.3


async def test_nobody_listens() -> None:
    async with scripted([]) as (url, _):
        pass
    with pytest.raises(Unreachable, match="no connection to http://127") as caught:
        await call(url, "POST")
    assert "osb server" in caught.value.hint


async def test_silence_is_a_timeout() -> None:
    async def hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(hold) as address:
        transport = Transport(0.1, ())
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            await transport.request("GET", f"http://{address}", headers={})
        await transport.close()


async def test_a_foreign_server_is_named_as_such() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    async with scripted([page]) as (url, _):
        transport = Transport(5.0, ())
        answer = await transport.request("GET", url, headers={})
        with pytest.raises(RuntimeFailure, match="not JSON"):
            answer.json()
        await transport.close()


async def test_connections_are_kept() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)

    async with serving(serve) as address:
        transport = Transport(5.0)
        for _ in range(20):
            await transport.request("GET", f"http://{address}", headers={})
        assert opened == 1
        await transport.close()
