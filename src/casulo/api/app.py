# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The ASGI application: the routes, once below `/v1` and once without, inside the edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from casulo import __version__
from casulo.api import audit, errors, openapi
from casulo.api.audit import AuditLog
from casulo.api.auth import KeyCheck
from casulo.api.edge import Edge
from casulo.api.measures import Measures
from casulo.api.peers import Peers
from casulo.api.proxy.front import ProxyFront
from casulo.api.record import Record
from casulo.api.routes.context import Application
from casulo.api.tokens import Tokens
from casulo.api.traces import Traces
from casulo.api.webhooks import Webhooks
from casulo.control.lifecycle import Lifecycle
from casulo.settings import Settings


def create_app(settings: Settings, lifecycle: Lifecycle) -> FastAPI:
    """The application over a `lifecycle` that it uses and does not own; it is opened after, and serves then.

    `settings.server.api_key` guards it; without one everybody may call.
    """
    measures = Measures(lifecycle)
    webhooks = Webhooks(settings.webhooks, lifecycle.outbox)
    record = Record(measures, _audit_log(settings))
    traces = Traces.of(settings.otel, lifecycle.events)
    tokens = Tokens(settings.data_dir)
    peers = Peers(settings.proxy, lifecycle)
    proxy = ProxyFront(settings.proxy, lifecycle, tokens)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        webhooks.start()
        yield
        await webhooks.close()
        proxy.close()
        peers.close()
        record.close()
        if traces:
            await asyncio.to_thread(traces.close)

    app = FastAPI(
        title="Casulo",
        version=__version__,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.application = Application(settings, lifecycle, measures, tokens)
    errors.install(app)
    for router, prefix in openapi.served_routes():
        app.include_router(router, prefix=prefix)
    app.openapi = openapi.schema  # type: ignore[method-assign]
    keys = KeyCheck(settings.server.api_key, lifecycle.keys)
    app.add_middleware(Edge, keys=keys, proxy=proxy, peers=peers, record=record)
    return app


def _audit_log(settings: Settings) -> AuditLog | None:
    wanted = settings.audit
    if not wanted.enabled:
        return None
    return AuditLog(settings.data_dir / audit.FILE, wanted.max_bytes, wanted.keep_files)
