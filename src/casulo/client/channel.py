# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The direct line to the daemon inside one sandbox: finds its endpoint, adds its headers, speaks JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, urlencode

from casulo.client.faults import Unreachable
from casulo.client.records import Endpoint
from casulo.client.transport import Answer, Body, Incoming, Transport, encode

Query = Iterable[tuple[str, str]]


class Channel:
    """Requests to the daemon of one sandbox. `locate` looks its endpoint up, `headers` go everywhere."""

    def __init__(
        self,
        transport: Transport,
        locate: Callable[[], Awaitable[Endpoint]],
        headers: Mapping[str, str],
        endpoint: Endpoint | None = None,
        sleepy: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._transport = transport
        self._locate = locate
        self._headers = headers
        self._endpoint = endpoint
        self._sleepy = sleepy
        self._used = time.monotonic()

    def forget(self) -> None:
        """Look the endpoint up again before the next request; it may have moved."""
        self._endpoint = None

    async def endpoint(self) -> Endpoint:
        """Where the daemon listens. Looking that up wakes a sandbox that may have fallen asleep meanwhile."""
        patience, now = self._sleepy(), time.monotonic()
        if patience is not None and now - self._used > patience / 2:
            self.forget()
        self._used = now
        if self._endpoint is None:
            self._endpoint = await self._locate()
        return self._endpoint

    async def address(self, path: str, query: Query = ()) -> tuple[str, dict[str, str]]:
        """The URL of a path and the headers that go with it, for protocols other than plain requests."""
        endpoint = await self.endpoint()
        return _url(endpoint, path, query), {**self._headers, **endpoint.headers}

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        content: object = None,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """One call; `content` is sent as JSON, `body` as it is."""
        payload, kind = encode(content)
        for last in (False, True):
            endpoint = await self.endpoint()
            try:
                return await self._transport.request(
                    method,
                    _url(endpoint, path, query),
                    headers={**self._headers, **endpoint.headers, **kind, **(headers or {})},
                    body=payload or body,
                    timeout=timeout,
                    repeatable=repeatable,
                )
            except Unreachable:
                self.forget()  # nothing was sent, so looking again and sending once more is safe
                if last:
                    raise
        raise AssertionError("the last attempt either returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        content: object = None,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        write_timeout: float | None = 60.0,
    ) -> AsyncIterator[Incoming]:
        """One call whose answer is read as it arrives; a timeout of None waits without end."""
        payload, kind = encode(content)
        endpoint = await self.endpoint()
        async with self._transport.stream(
            method,
            _url(endpoint, path, query),
            headers={**self._headers, **endpoint.headers, **kind, **(headers or {})},
            body=payload or body,
            read_timeout=read_timeout,
            write_timeout=write_timeout,
        ) as incoming:
            yield incoming


def _url(endpoint: Endpoint, path: str, query: Query) -> str:
    """Names that are not UTF-8 arrive as surrogate escapes and leave as the bytes they stand for."""
    text = urlencode(list(query), quote_via=quote, errors="surrogateescape")
    return f"{endpoint.url}{path}?{text}" if text else f"{endpoint.url}{path}"
