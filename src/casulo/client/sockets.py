# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""httpcore on asyncio's own transports.

What httpcore brings for asyncio goes through a layer that also serves other event loops; on small calls that
layer costs as much as all the rest. This one also sends the head and a small body of a request together, and
keeps an answer that arrived before the connection broke.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import httpcore

_HIGH_WATER = 256 << 10
_TOGETHER = 64 << 10
_CLOSE_SECONDS = 1.0
_NEXT_ADDRESS_SECONDS = 0.25


def new_pool(*, max_connections: int, keep_alive: float) -> httpcore.AsyncConnectionPool:
    """A pool on this backend."""
    return httpcore.AsyncConnectionPool(
        max_connections=max_connections, keepalive_expiry=keep_alive, network_backend=Backend()
    )


class Backend(httpcore.AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """To `host`:`port`; when the name has several addresses, a silent one does not hold up the others."""
        loop = asyncio.get_running_loop()
        delay: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):  # other loops do not know this
            delay["happy_eyeballs_delay"] = _NEXT_ADDRESS_SECONDS
        try:
            async with asyncio.timeout(timeout):
                transport, wire = await loop.create_connection(_Wire, host, port, **delay)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        _at_once(transport)
        return Stream(transport, wire)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Not used by any URL of ours."""
        raise httpcore.UnsupportedProtocol("addresses are host and port")

    async def sleep(self, seconds: float) -> None:
        """Between httpcore's own attempts."""
        await asyncio.sleep(seconds)


class Stream(httpcore.AsyncNetworkStream):
    """One connection."""

    def __init__(self, transport: asyncio.Transport, wire: _Wire) -> None:
        self._transport = transport
        self._wire = wire
        self._unsent: list[bytes] = []
        self._unsent_size = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What arrived next, however much; nothing at the end."""
        self._send()
        try:
            return self._wire.take() or await self._wire.wait_for_data(timeout)
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Small pieces wait until the loop turns, so that those which belong together leave together."""
        if self._wire.lost:
            raise httpcore.WriteError("the connection is closed")
        if buffer and not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(buffer)
        self._unsent_size += len(buffer)
        if self._unsent_size >= _TOGETHER:
            self._send()
        if not self._wire.writable.is_set():
            await self._drained(timeout)

    async def aclose(self) -> None:
        """Close at once; what the other side did not take by now it will not get."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        self._transport.close()
        if self.get_extra_info("ssl_object") is None:
            await asyncio.wait([self._wire.closed], timeout=_CLOSE_SECONDS)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted."""
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self._wire,
                ssl_context,
                server_hostname=server_hostname,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, ssl.SSLError) as error:
            self._transport.abort()
            raise httpcore.ConnectError(str(error) or type(error).__name__) from error
        assert transport is not None
        self._wire.transport = transport
        return Stream(transport, self._wire)

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks about: whether an idle connection has been closed by the other side."""
        if info == "is_readable":
            return self._wire.lost or self._wire.has_data or _readable(self._transport)
        return self._transport.get_extra_info(
            {"server_addr": "peername", "client_addr": "sockname"}.get(info, info)
        )

    async def _drained(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._wire.writable.wait()
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error
        if self._wire.lost:
            raise httpcore.WriteError("the connection broke")

    def _send(self) -> None:
        if self._unsent:
            unsent, self._unsent, self._unsent_size = self._unsent, [], 0
            if not self._wire.lost:
                self._transport.write(b"".join(unsent))


class _Wire(asyncio.Protocol):
    """Keeps what arrived until it is taken, also when the connection broke after it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.closed = asyncio.get_running_loop().create_future()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_data(self) -> bool:
        """Whether something waits to be taken, the end included."""
        return bool(self._chunks) or self._ended

    def take(self) -> bytes:
        """All that waits; empty when nothing does."""
        if not self._chunks:
            return b""
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self._size >= _HIGH_WATER and self.transport is not None and not self.lost:
            self.transport.resume_reading()
        self._size = 0
        return data

    async def wait_for_data(self, timeout: float | None) -> bytes:
        """The next data; empty at a regular end, an error at any other."""
        if not self._chunks and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            finally:
                self._waiter = None
        if not self._chunks and self._error is not None:
            raise self._error
        return self.take()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop, for TLS a second time. Other loops have transports of their own kind."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        before, self._size = self._size, self._size + len(data)
        self._chunks.append(data)
        if before < _HIGH_WATER <= self._size and self.transport is not None:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Called by the loop, which then closes the connection."""
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop, last."""
        self.lost = self._ended = True
        self._error = error
        self.writable.set()
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Called by the loop when the other side reads too slowly."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop when it caught up."""
        self.writable.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _at_once(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _readable(transport: asyncio.Transport) -> bool:
    """Whether the kernel has something that the loop has not seen yet; on an idle connection: the end."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
