# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Forwarding of one HTTP request: both bodies streamed, at the same time, at the slower side's pace."""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import Message, Receive, Scope, Send

from casulo.api.proxy import headers as rules
from casulo.api.proxy.pool import Pool
from casulo.api.proxy.route import Route
from casulo.api.proxy.upstream import Broken, Connection, Head
from casulo.model.errors import Code, RuntimeFailure, TimedOut

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})

_log = structlog.get_logger(__name__)


class CallerGone(Exception):
    """The caller closed its connection; nobody is left to be answered."""


class HttpProxy:
    """Forwards requests over a pool; `limit` seconds are allowed until an answer begins."""

    def __init__(self, pool: Pool, limit: float) -> None:
        self._pool = pool
        self._limit = limit

    async def forward(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        """Answer `scope` with what the sandbox says. Raises typed errors until the answer begins."""
        request = _Request(scope, route)
        try:
            if not await self._attempt(request, receive, send, fresh=False):
                await self._attempt(request, receive, send, fresh=True)
        except CallerGone:
            _log.debug("proxy.caller_gone", sandbox_id=route.peer.sandbox_id)

    async def _attempt(self, request: _Request, receive: Receive, send: Send, *, fresh: bool) -> bool:
        """One try. False when a connection that had lain idle turned out to be closed already."""
        async with self._pool.connection(request.route.peer, fresh=fresh) as connection:
            exchange = _Exchange(request, connection, self._limit)
            try:
                await exchange.run(receive, send)
            except Broken as error:
                if exchange.answering:
                    _log.info("proxy.broken", sandbox_id=request.route.peer.sandbox_id, error=str(error))
                    return True  # the answer stays unfinished, so that the caller sees it broken
                if error.clean_slate and connection.reused and request.repeatable:
                    return False
                raise _response_failed(request.route, error) from None
        return True


_FAULT_HEADER = b"execd-proxy-fault"
"""Set by the daemon's own proxy on answers that are not the program's."""


class _Request:
    """A request in the form in which it is sent on."""

    def __init__(self, scope: Scope, route: Route) -> None:
        self.scope = scope
        self.route = route
        headers = scope["headers"]
        self.method: str = scope["method"]
        self.chunked = rules.value_of(headers, b"transfer-encoding") is not None
        self.has_body = self.chunked or rules.value_of(headers, b"content-length") not in (None, b"0")
        self.repeatable = not self.has_body and self.method in _REPEATABLE

    def head(self) -> bytes:
        """Request line and headers as bytes."""
        lines = [self.method.encode() + b" " + self.route.path + b" HTTP/1.1", b"Host: " + self.route.host]
        lines += [name + b": " + value for name, value in rules.for_sandbox(self.scope, self.route)]
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def framed(self, data: bytes) -> bytes:
        """A piece of the body as it goes over the wire."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data


class _Exchange:
    """One request and its answer over one connection."""

    def __init__(self, request: _Request, connection: Connection, limit: float) -> None:
        self._request = request
        self._connection = connection
        self._limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self.answering = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Send the request and pass the answer on; returns when the caller has all of it."""
        self._connection.start(self._request.method.encode(), self._request.head())
        upload = asyncio.create_task(self._upload(receive))
        try:
            head = await self._connection.head()
            _refuse_faults(head, self._request.route)
            await self._download(head, send)
        finally:
            self._stop_clock()
            upload.cancel()
            await asyncio.wait([upload])

    async def _upload(self, receive: Receive) -> None:
        """Send the body, then watch for the caller to leave. Never fails: the answer tells.

        The clock runs only while it is the sandbox's turn, not while the caller hesitates.
        """
        sending = self._request.has_body
        if not sending:
            self._connection.request_sent()
            self._start_clock()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._connection.abort(CallerGone())
                return
            if sending:
                self._start_clock()
                sending = await self._pass_on(message)
                if sending:
                    self._stop_clock()

    async def _pass_on(self, message: Message) -> bool:
        """Send one piece of the body; False when it was the last, or nobody takes it any more."""
        data: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        try:
            if data:
                await self._connection.write(self._request.framed(data))
            if not more and self._request.chunked:
                await self._connection.write(b"0\r\n\r\n")
        except Broken:
            return False
        if not more:
            self._connection.request_sent()
        return more

    def _start_clock(self) -> None:
        if not self.answering:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._expire)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._connection.abort(_timed_out(self._request.route, self._limit))

    async def _download(self, head: Head, send: Send) -> None:
        self.answering = True
        self._stop_clock()
        scope = self._request.scope
        caller_host = rules.value_of(scope["headers"], b"host")
        await send(
            {
                "type": "http.response.start",
                "status": head.status,
                "headers": rules.for_caller(head.headers, self._request.route, caller_host),
            }
        )
        if head.status == 304:
            # Its Content-Length, too, counts bytes that do not follow; the server knows that of HEAD only.
            scope["method"] = "HEAD"
        more = True
        while more:
            data = await self._connection.read()
            more = not self._connection.drained
            await send({"type": "http.response.body", "body": data, "more_body": more})


def _refuse_faults(head: Head, route: Route) -> None:
    """Raise what the daemon's own proxy met, and what no server can pass on."""
    fault = rules.value_of(head.headers, _FAULT_HEADER)
    if fault == b"connect":
        raise _nobody_listens(route)
    if fault is not None:
        raise _response_failed(route, Broken("it does not speak HTTP"))
    if not 200 <= head.status <= 599:
        raise _response_failed(route, Broken(f"HTTP has no status {head.status}"))


def _nobody_listens(route: Route) -> RuntimeFailure:
    return RuntimeFailure(
        f"nothing listens on that port of sandbox {route.peer.sandbox_id}",
        code=Code.BACKEND_CONNECTION_FAILED,
        hint="start the program first; it may listen on 127.0.0.1 or on all addresses",
    )


def _response_failed(route: Route, error: Broken) -> RuntimeFailure:
    return RuntimeFailure(
        f"sandbox {route.peer.sandbox_id} broke off before it answered: {error}",
        code=Code.BACKEND_RESPONSE_FAILED,
        hint="the program on that port may have crashed; read the sandbox's logs",
    )


def _timed_out(route: Route, limit: float) -> TimedOut:
    return TimedOut(
        f"sandbox {route.peer.sandbox_id} did not begin to answer within {limit:g} s",
        code=Code.BACKEND_TIMEOUT,
        hint="use the direct endpoint for slow answers, or raise [proxy] request_timeout_seconds",
    )
