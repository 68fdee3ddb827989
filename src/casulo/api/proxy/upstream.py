# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One HTTP/1.1 connection to a sandbox, without interpretation: bytes in, bytes out, both at once.

General HTTP clients send the whole request before they read the answer, decode bodies or tidy
headers. A proxy may do none of that, so this is the client side of HTTP/1.1 and nothing more: the
parser of the server (llhttp) reads the answer, the socket's own flow control holds either side back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import cast

import httptools

Headers = list[tuple[bytes, bytes]]

_HIGH_WATER = 256 * 1024
_LOW_WATER = 64 * 1024
_MAX_HEAD = 256 * 1024
_BODILESS = frozenset({204, 304})


class Broken(Exception):
    """The connection failed, or what came over it was not HTTP.

    `clean_slate` is true when not one byte of an answer had arrived.
    """

    def __init__(self, message: str, *, clean_slate: bool = False) -> None:
        super().__init__(message)
        self.clean_slate = clean_slate


@dataclass(frozen=True)
class Head:
    """Status and headers of an answer, in the order and number in which they came."""

    status: int
    headers: Headers


class Connection(asyncio.Protocol):
    """Serves one exchange at a time: `start`, then `write` and `head`/`read` in any interleaving."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.reused = False
        self.closed = False
        self._in_exchange = False
        self._reset(b"")

    def _reset(self, method: bytes) -> None:
        self._method = method
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_size = 0
        self._interim = False
        self._head: asyncio.Future[Head] = self._loop.create_future()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._heard = False
        self._done = False
        self._until_eof = False
        self._surplus = False
        self._request_sent = False
        self._keep_alive = False
        self._error: BaseException | None = None

    # The exchange, as its one user sees it.

    def start(self, method: bytes, head: bytes) -> None:
        """Send a request head; what belonged to the exchange before is forgotten."""
        self._reset(method)
        self._in_exchange = True
        if self.closed or self._transport is None:
            self.abort(Broken("the connection was already closed", clean_slate=True))
        else:
            self._transport.write(head)

    async def write(self, data: bytes) -> None:
        """Send a piece of the request's body; waits while the sandbox does not read."""
        if self.closed or self._transport is None:
            raise self._error or Broken("the connection was closed while the request was sent")
        self._transport.write(data)
        await self._writable.wait()

    @property
    def drained(self) -> bool:
        """Whether the body came to its proper end and was read to the last byte."""
        return self._done and not self._chunks

    def request_sent(self) -> None:
        """The request's body is complete; without this the connection is not used again."""
        self._request_sent = True

    async def head(self) -> Head:
        """The final answer's head; interim answers are passed over. Raises Broken."""
        return await self._head

    async def read(self) -> bytes:
        """The next bytes of the body as they came, empty at its proper end. Raises Broken."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._done:
                return b""
            self._wake.clear()
            await self._wake.wait()
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self._size > _LOW_WATER and self._transport is not None and not self.closed:
            self._transport.resume_reading()
        self._size = 0
        return data

    def abort(self, reason: BaseException) -> None:
        """End the exchange at once: whoever waits for the answer gets `reason`."""
        self._fail(reason)
        self.close()

    def finish(self) -> bool:
        """The user is done with the exchange. Whether the connection may serve another one."""
        self._in_exchange = False
        self.reused = True
        if not self._head.done():
            self._head.cancel()
        elif not self._head.cancelled():
            self._head.exception()  # marks it as seen
        return (
            self._done and self._keep_alive and self._request_sent and not self._surplus and not self.closed
        )

    def close(self) -> None:
        """Close the socket; nothing is waited for."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; outside an exchange they have no meaning and end the connection."""
        if not self._in_exchange:
            self.close()
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.abort(Broken("the answer switched protocols without being asked"))
        except httptools.HttpParserError as error:
            if self._done:
                self._surplus = True
            else:
                self.abort(Broken(f"the answer is not HTTP: {error}"))

    def eof_received(self) -> bool:
        """The sandbox will send nothing more."""
        if self._until_eof and not self._done:
            self._finish_message(keep_alive=False)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone; an unfinished exchange fails."""
        self.closed = True
        self._writable.set()
        self._fail(Broken(str(error) or "the connection was closed", clean_slate=not self._heard))

    def pause_writing(self) -> None:
        """The socket's send buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The socket's send buffer has room again."""
        self._writable.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A new message; behind a finished one it is surplus."""
        self._surplus = self._surplus or self._done

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, or a trailer line (those are dropped)."""
        if self._head.done():
            return
        self._head_size += len(name) + len(value) + 4
        if self._head_size > _MAX_HEAD:
            self.abort(Broken(f"the answer's head is larger than {_MAX_HEAD} bytes"))
            return
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: decide how the body will end, and hand the head over."""
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim or self._head.done():
            self._headers = []
            return
        bodiless = self._method == b"HEAD" or status in _BODILESS
        self._until_eof = not bodiless and not _is_framed(self._headers)
        self._head.set_result(Head(status, self._headers))
        if bodiless:
            self._finish_message(keep_alive=self._parser.should_keep_alive())

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._done:
            self._surplus = True
            return
        self._chunks.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER and self._transport is not None and not self.closed:
            self._transport.pause_reading()
        self._wake.set()

    def on_message_complete(self) -> None:
        """The message is complete; an interim one only makes way for the next."""
        if self._interim:
            self._interim = False
        elif not self._done:
            self._finish_message(keep_alive=self._parser.should_keep_alive())

    def _finish_message(self, *, keep_alive: bool) -> None:
        self._done = True
        self._keep_alive = keep_alive and not self._until_eof
        self._wake.set()

    def _fail(self, reason: BaseException) -> None:
        if self._done or self._error is not None:
            return
        self._error = reason
        if not self._head.done():
            self._head.set_exception(reason)
        self._wake.set()


def _is_framed(headers: Headers) -> bool:
    """Whether the body's end is announced, rather than being the end of the connection."""
    names = {name.lower() for name, _ in headers}
    return b"content-length" in names or b"transfer-encoding" in names
