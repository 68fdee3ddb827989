# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The bottom of the client: encrypted lines, other loops, slow and hasty peers."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from casulo.client.faults import Disconnected, Unreachable
from casulo.client.transport import Transport
from casulo.model.errors import InvalidRequest, TimedOut
from support.machine import cannot_run

from .wires import OK, serving


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate for localhost and its key, trusted through the environment as a private authority is."""
    if shutil.which("openssl") is None:
        cannot_run("openssl is not installed")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(key), "-out", str(chain), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*words.split(), *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    return chain, key


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the body it got."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        body = await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


async def test_encrypted_lines(certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    body = bytes(range(256)) * 4000
    async with serving(echo, ssl=context) as address:
        transport = Transport(5.0, ())
        url = f"https://localhost:{address.rpartition(':')[2]}/"
        for _ in range(3):
            assert (await transport.request("POST", url, headers={}, body=body)).body == body
        with pytest.raises(Unreachable, match="certificate"):
            await transport.request("GET", url.replace("localhost", "127.0.0.1"), headers={})
        await transport.close()


def test_other_loops() -> None:
    async def main() -> bytes:
        async with serving(echo) as address:
            transport = Transport(5.0, ())
            answer = await transport.request("POST", f"http://{address}/", headers={}, body=b"x" * 1_000_000)
            await transport.close()
        return answer.body

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b"x" * 1_000_000


async def test_an_answer_before_the_end_of_a_long_request_is_not_lost() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b'HTTP/1.1 413 No\r\nContent-Length: 28\r\n\r\n{"code": "C","message": "m"}')
        await writer.drain()
        await asyncio.sleep(0.1)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    async with serving(refuse) as address:
        transport = Transport(5.0, ())
        with pytest.raises((InvalidRequest, Disconnected)) as caught:
            await transport.request("POST", f"http://{address}/", headers={}, body=endless())
        assert isinstance(caught.value, InvalidRequest)
        await transport.close()


async def test_a_peer_that_does_not_read_is_a_timeout_not_memory() -> None:
    async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b"x" * 65536
            sent += 65536

    async with serving(deaf) as address:
        transport = Transport(0.3, ())
        with pytest.raises(TimedOut):
            await transport.request("POST", f"http://{address}/", headers={}, body=body())
        assert sent < 32 << 20
        await transport.close()


async def test_a_reader_that_is_slow_holds_the_sender_back() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with serving(flood) as address:
        transport = Transport(5.0, ())
        got = 0
        async with transport.stream("GET", f"http://{address}/", headers={}) as incoming:
            async for chunk in incoming.chunks:
                got += len(chunk)
                if got < 1 << 20:
                    await asyncio.sleep(0.01)
                    assert sent - got < 24 << 20
        assert got == 64 << 20
        await transport.close()


async def test_an_idle_connection_that_was_closed_is_not_used_again() -> None:
    opened = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()

    async with serving(once) as address:
        transport = Transport(5.0, ())
        for _ in range(5):
            assert (await transport.request("POST", f"http://{address}/", headers={})).body == b"ok"
            time.sleep(0.02)  # the loop does not turn: only the kernel knows that the line is closed
        assert opened == 5
        await transport.close()
