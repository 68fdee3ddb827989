# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server proxy as the edge sees it: find the sandbox, then forward."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from casulo.api.proxy import websocket
from casulo.api.proxy.headers import value_of
from casulo.api.proxy.http import HttpProxy
from casulo.api.proxy.pool import Pool
from casulo.api.proxy.route import Route, Target, check_port, route_to
from casulo.api.sidecar import Sidecar
from casulo.api.tokens import Tokens
from casulo.control.access import Access
from casulo.control.lifecycle import Lifecycle
from casulo.model.errors import CasuloError
from casulo.model.keys import Caller
from casulo.model.sandbox import EGRESS_PORT
from casulo.settings import ProxySettings


class ProxyFront:
    """One per server."""

    def __init__(self, settings: ProxySettings, lifecycle: Lifecycle, tokens: Tokens) -> None:
        self._sidecar = Sidecar(tokens, lifecycle.vault_settings)
        self._limit = settings.request_timeout_seconds
        self._lifecycle = lifecycle
        self._pool = Pool(limit=settings.max_connections, connect_timeout=settings.connect_timeout_seconds)
        self._http = HttpProxy(self._pool, self._limit)

    def close(self) -> None:
        """Cut every connection."""
        self._pool.close()

    async def http(self, target: Target, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request. Raises typed errors as long as nothing was answered."""
        access = Access(self._lifecycle, caller)
        if target.port == EGRESS_PORT and await access.policies.supported(target.sandbox_id):
            await self._sidecar(access, target.sandbox_id, target.rest, scope, receive, send)
            return
        await self._http.forward(scope, receive, send, await self._find(target, caller, scope))

    async def websocket(
        self, target: Target, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a WebSocket; every failure becomes a close code."""
        try:
            route = await self._find(target, caller, scope)
        except CasuloError as error:
            await self.refuse(receive, send, error)
        else:
            await websocket.relay(scope, receive, send, route, self._limit)

    async def refuse(self, receive: Receive, send: Send, error: CasuloError) -> None:
        """Tell a WebSocket caller a typed error."""
        await receive()
        await websocket.refuse(send, websocket.REFUSED, f"{error.code}: {error.message}")

    async def _find(self, target: Target, caller: Caller, scope: Scope) -> Route:
        check_port(target.port)
        access = Access(self._lifecycle, caller)
        handle = await access.endpoint(target.sandbox_id, target.port)
        if value_of(scope["headers"], b"opensandbox-access-renew") != b"skip":
            await access.renew_on_access(target.sandbox_id)
        return route_to(target, handle)
