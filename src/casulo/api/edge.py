# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The outermost layer: what holds for every request, whoever answers it in the end.

It gives each request an id, lets in who may come in, hands proxied requests to the proxy and the
others to the routes, and is the one place where an unforeseen exception ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from email.utils import formatdate
from functools import partial

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from casulo.api import cors, errors, traces
from casulo.api.auth import METRICS_PATH, OPEN_PATHS, KeyCheck, note_caller
from casulo.api.peers import Peers
from casulo.api.proxy.front import ProxyFront
from casulo.api.proxy.headers import value_of
from casulo.api.proxy.route import Target, target_of
from casulo.api.record import Answered, Record
from casulo.model.errors import CasuloError
from casulo.model.keys import Caller

REQUEST_ID = b"x-request-id"

_log = structlog.get_logger(__name__)


class Edge:
    """Wraps the routes; `keys` decides who may call them."""

    def __init__(
        self, app: ASGIApp, *, keys: KeyCheck, proxy: ProxyFront, peers: Peers, record: Record
    ) -> None:
        self._app = app
        self._record = record
        self._keys = keys
        self._proxy = proxy
        self._peers = peers
        self._clock = _Clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, _Answer(scope, send, self._clock))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, _Answer(scope, send, self._clock))
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        # Tasks that the request starts inherit this, so what they log can be found by its id.
        bind_contextvars(request_id=answer.request_id)
        traces.parent.set((value_of(scope["headers"], b"traceparent") or b"").decode("latin-1"))
        target = target_of(scope)
        answer.before_head = partial(self._record.answered, scope, proxied=target is not None)
        try:
            await self._answer(target, scope, receive, answer)
        finally:
            if not answer.started:
                answer.before_head(Answered(answer.request_id, 0, ""))

    async def _answer(self, target: Target | None, scope: Scope, receive: Receive, answer: _Answer) -> None:
        failure: Response | None = None
        try:
            await self._dispatch(target, scope, receive, answer)
        except CasuloError as error:
            failure = errors.response_to(error)
        except Exception:
            _log.exception("request.failed", request_id=answer.request_id, path=scope["path"])
            failure = errors.unknown_error()
        if failure is not None and not answer.started:
            await failure(scope, receive, answer)

    async def _dispatch(self, target: Target | None, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if cors.is_preflight(scope):
            await Response()(scope, receive, _with_headers(answer, cors.preflight_headers(scope)))
            return
        if target is None:
            self._identify(scope)
        caller = None if target is None else self._guest(target, scope)
        if await self._peers.http(scope, receive, answer):
            return
        if target is None or caller is None:
            await self._app(scope, receive, answer)
        else:
            await self._proxy.http(target, caller, scope, receive, answer)

    def _identify(self, scope: Scope) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path not in OPEN_PATHS:
            note_caller(scope, self._keys.caller(scope["headers"], bearer=path == METRICS_PATH))

    def _guest(self, target: Target, scope: Scope) -> Caller:
        """On whose behalf a proxied request goes; a path that climbs could mean something else."""
        check = self._keys.caller if target.climbs else self._keys.proxied
        caller = check(scope["headers"])
        note_caller(scope, caller)
        return caller

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = target_of(scope)
        if target is None:
            await self._app(scope, receive, send)  # there is no other WebSocket: the router refuses it
            return
        try:
            caller = self._guest(target, scope)
            if await self._peers.websocket(scope, receive, send):
                return
        except CasuloError as error:
            await self._proxy.refuse(receive, send, error)
        else:
            await self._proxy.websocket(target, caller, scope, receive, send)


class _Clock:
    """The value of the Date header, computed once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def date(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second, self._text = now, formatdate(now, usegmt=True).encode()
        return self._text


class _Answer:
    """A `send` that completes the head of whatever is answered."""

    def __init__(self, scope: Scope, send: Send, clock: _Clock) -> None:
        given = value_of(scope["headers"], REQUEST_ID)
        self.request_id = (given or b"").strip().decode("latin-1") or uuid.uuid4().hex
        self.started = False
        self.before_head: Callable[[Answered], None] = _nothing
        self._id_line = (REQUEST_ID, self.request_id.encode("latin-1"))
        self._scope = scope
        self._send = send
        self._clock = clock
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            message = {**message, "headers": [*message.get("headers", []), self._id_line]}
        elif message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            self.started = True
            made = (value_of(headers, b"location") or b"").decode("latin-1")
            self.before_head(Answered(self.request_id, message["status"], made))
            if value_of(headers, REQUEST_ID) is None:
                headers.append(self._id_line)
            if value_of(headers, b"date") is None:
                headers.append((b"date", self._clock.date()))
            cors.add(self._scope, headers)
            message = {**message, "headers": headers}
        await self._send(message)


def _nothing(_: Answered) -> None:
    """WebSockets are not counted as answers."""


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return wrapped
