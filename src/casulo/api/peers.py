# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Requests about what is on another server's machine: sent on to it whole, and its answer comes back.

Rows are read anywhere, so one sandbox and all lists are answered here. Everything else about a sandbox
needs its machine.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from starlette.types import Receive, Scope, Send

from casulo.api.auth import caller_of
from casulo.api.proxy import websocket
from casulo.api.proxy.headers import PASSED_ON, value_of
from casulo.api.proxy.http import HttpProxy
from casulo.api.proxy.pool import Peer, Pool
from casulo.api.proxy.route import Route, raw_target
from casulo.control.lifecycle import Lifecycle
from casulo.model.errors import CasuloError, Code
from casulo.settings import ProxySettings

_ABOUT = re.compile(rb"/(?:v1/)?(sandboxes|snapshots|templates)/([^/?]+)(/[^?]*)?")
_DEFAULT_PORT = 80


class Peers:
    """One per server; does nothing where the store is this server's alone."""

    def __init__(self, settings: ProxySettings, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._limit = settings.request_timeout_seconds
        self._pool = Pool(limit=settings.max_connections, connect_timeout=settings.connect_timeout_seconds)
        self._http = HttpProxy(self._pool, self._limit)

    def close(self) -> None:
        """Cut every connection."""
        self._pool.close()

    async def http(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Whether another server answered. Unavailable when that one is away."""
        route = await self._route(scope)
        if route is None:
            return False
        try:
            await self._http.forward(scope, receive, send, route)
        except CasuloError as error:
            if error.code != Code.BACKEND_CONNECTION_FAILED:
                raise
            raise self._lifecycle.membership.away(route.peer.sandbox_id) from error
        return True

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """The same for a WebSocket."""
        route = await self._route(scope)
        if route is None:
            return False
        await websocket.relay(scope, receive, send, route, self._limit)
        return True

    async def _route(self, scope: Scope) -> Route | None:
        if not self._lifecycle.membership.shared or value_of(scope["headers"], PASSED_ON) is not None:
            return None
        target = raw_target(scope).removeprefix(scope.get("root_path", "").encode())
        match = _ABOUT.match(target)
        if match is None or (scope.get("method") == "GET" and not match[3]):
            return None
        kind, item_id = match[1].decode(), unquote(match[2].decode("latin-1"))
        # Whether that server answers is nobody's business who has nothing there.
        server = await self._lifecycle.place_of(kind, item_id, caller_of(scope))
        if server is None or server == self._lifecycle.here:
            return None
        there = urlsplit((await self._lifecycle.membership.peer(server)).url)
        host = value_of(scope["headers"], b"host") or there.netloc.encode()
        peer = Peer(server, there.hostname or "", there.port or _DEFAULT_PORT)
        return Route(peer, peer.port, target, host, b"", None, to_server=True)
