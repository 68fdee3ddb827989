# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""HTTP as the client needs it: one keep-alive pool, explicit timeouts, retries that can do no harm.

It stands on httpcore, the engine inside httpx: importing all of httpx takes longer than creating a sandbox,
and the part above httpcore costs as much per call as the call itself. Nothing else here knows httpcore.

An answer with a failure status is raised as a typed error. Requests that are safe to repeat are repeated when
the connection breaks or the server says "not now"; others only when nothing was sent.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from casulo.client import faults
from casulo.model.errors import CasuloError, RuntimeFailure, TimedOut

if TYPE_CHECKING:
    import httpcore

Body = bytes | AsyncIterable[bytes]

CONNECT_TIMEOUT = 5.0
PAUSES = (0.05, 0.2, 0.6)
LONGEST_RETRY_AFTER = 60.0
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_RETRIED_STATUSES = frozenset({429, 502, 503})
_MAX_CONNECTIONS = 256
_KEEP_ALIVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; a RuntimeFailure when it is something else."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise RuntimeFailure(
                f"the answer is not JSON: {self.body[:120]!r}",
                code=faults.BAD_ANSWER,
                hint="is something else than a Casulo server listening at this address?",
            ) from error


@dataclass(frozen=True, slots=True)
class Incoming:
    """A response whose body is still arriving."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    url: str
    headers: Mapping[str, str]
    body: Body
    timeout: float
    read_timeout: float | None
    write_timeout: float | None


def encode(content: object) -> tuple[bytes, dict[str, str]]:
    """`content` as a JSON body with its header; None is no body."""
    if content is None:
        return b"", {}
    return json.dumps(content, separators=(",", ":")).encode(), {"Content-Type": "application/json"}


class Transport:
    """A pool of connections. `timeout` bounds every single wait for the other side.

    `pauses` are the seconds between attempts; empty means one attempt only.
    """

    def __init__(self, timeout: float, pauses: tuple[float, ...] = PAUSES) -> None:
        self._timeout = timeout
        self._pauses = pauses
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def close(self) -> None:
        """Close every connection. The transport opens new ones when it is used again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Body = b"",
        timeout: float | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Send, read the whole answer, raise what it says when it says failure."""
        limit = timeout or self._timeout
        call = _Call(method, url, headers, body, limit, limit, limit)
        if repeatable is None:
            repeatable = method in _REPEATABLE and isinstance(body, bytes)
        return await self._persist(lambda: self._once(call), repeatable)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Body = b"",
        read_timeout: float | None = None,
        write_timeout: float | None = None,
    ) -> AsyncIterator[Incoming]:
        """Send and hand over the body as it arrives; a timeout of None waits without end."""
        call = _Call(method, url, headers, body, self._timeout, read_timeout, write_timeout)
        async with self._exchange(call) as incoming:
            if incoming.status >= 300:
                raise faults.from_answer(incoming.status, incoming.headers, await _whole(incoming))
            yield incoming

    async def _once(self, call: _Call) -> Answer:
        async with self._exchange(call) as incoming:
            return Answer(incoming.status, incoming.headers, await _whole(incoming))

    async def _persist(self, once: Callable[[], Awaitable[Answer]], repeatable: bool) -> Answer:
        for pause in (*self._pauses, None):
            try:
                answer = await once()
            except faults.Unreachable:
                if pause is None:
                    raise
            except faults.Disconnected:
                if pause is None or not repeatable:
                    raise
            else:
                if answer.status < 300:
                    return answer
                if pause is None or not repeatable or answer.status not in _RETRIED_STATUSES:
                    raise faults.from_answer(answer.status, answer.headers, answer.body)
                pause = max(pause, _asked_pause(answer))
            await asyncio.sleep(pause * random.uniform(1.0, 1.3))
        raise AssertionError("the last attempt either returns or raises")

    @asynccontextmanager
    async def _exchange(self, call: _Call) -> AsyncIterator[Incoming]:
        with _translated(call):
            response = await self._connections().handle_async_request(_request(call))
            try:
                headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers}
                yield Incoming(response.status, headers, response.aiter_stream())
            finally:
                await response.aclose()

    def _connections(self) -> httpcore.AsyncConnectionPool:
        if self._pool is None:
            # Imported with the first connection: `osb --help` and a bare `import casulo.client` need none.
            from casulo.client.sockets import new_pool

            self._pool = new_pool(max_connections=_MAX_CONNECTIONS, keep_alive=_KEEP_ALIVE_SECONDS)
        return self._pool


def _request(call: _Call) -> httpcore.Request:
    from httpcore import Request

    headers = {"Host": urlsplit(call.url).netloc.rpartition("@")[2], **call.headers}
    if not isinstance(call.body, bytes):
        if "Content-Length" not in headers:
            headers["Transfer-Encoding"] = "chunked"
    elif call.body or call.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = str(len(call.body))
    limits = {
        "connect": min(CONNECT_TIMEOUT, call.timeout),
        "pool": call.timeout,
        "write": call.write_timeout,
        "read": call.read_timeout,
    }
    return Request(
        call.method,
        call.url,
        headers=list(headers.items()),
        content=call.body,
        extensions={"timeout": limits},
    )


async def _whole(incoming: Incoming) -> bytes:
    return b"".join([chunk async for chunk in incoming.chunks])


def _asked_pause(answer: Answer) -> float:
    try:
        return min(float(answer.headers.get("retry-after", "0")), LONGEST_RETRY_AFTER)
    except ValueError:
        return 0.0


@contextmanager
def _translated(call: _Call) -> Iterator[None]:
    """httpcore's exceptions as ours."""
    import httpcore

    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _unreachable(call, error) from error
    except httpcore.TimeoutException as error:
        raise TimedOut(
            f"no answer from {_where(call)} within {call.timeout:g} s",
            code=faults.REQUEST_TIMEOUT,
            hint="raise request_timeout when the operation is known to be long",
        ) from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise faults.Disconnected(
            f"the connection to {_where(call)} broke: {str(error) or type(error).__name__}",
            code=faults.DISCONNECTED,
        ) from error


def _unreachable(call: _Call, error: Exception) -> CasuloError:
    reason = str(error) or type(error).__name__
    return faults.Unreachable(
        f"no connection to {_where(call)}: {reason}",
        code=faults.CONNECTION_FAILED,
        hint="start a server with `osb server`, or name another one with OPEN_SANDBOX_DOMAIN; "
        "of a sandbox that ended, `osb sandbox get` says how",
    )


def _where(call: _Call) -> str:
    parts = urlsplit(call.url)
    return f"{parts.scheme}://{parts.netloc}"
