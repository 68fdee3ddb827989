# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The ASGI application: the routes, once below `/v1` and once without, inside the edge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from casulo import __version__
from casulo.api import errors
from casulo.api.auth import KeyCheck
from casulo.api.edge import Edge
from casulo.api.proxy.front import ProxyFront
from casulo.api.routes import diagnostics, refused, sandboxes, system
from casulo.api.routes.context import Context
from casulo.control.lifecycle import Lifecycle
from casulo.settings import Settings

DESCRIPTION = (
    "Lifecycle of sandboxes. Every path is also served without `/v1`. Any port of a sandbox is reached at "
    "`/v1/sandboxes/{id}/proxy/{port}/{path}` with every method, and as a WebSocket."
)


def create_app(settings: Settings, lifecycle: Lifecycle) -> FastAPI:
    """The application over an open `lifecycle`, which it uses and does not own.

    `settings.server.api_key` guards it; without one everybody may call.
    """
    proxy = ProxyFront(settings.proxy, lifecycle)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        proxy.close()

    app = FastAPI(
        title="Casulo",
        version=__version__,
        description=DESCRIPTION,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.context = Context(settings, lifecycle)
    errors.install(app)
    _include_routes(app)
    app.add_middleware(Edge, keys=KeyCheck(settings.server.api_key), proxy=proxy)
    return app


def _include_routes(app: FastAPI) -> None:
    routes = APIRouter()
    for module in (sandboxes, diagnostics, refused, system):
        routes.include_router(module.router)
    app.include_router(system.open_router)
    app.include_router(routes, prefix="/v1")
    app.include_router(system.v1_router, prefix="/v1")
    app.include_router(routes, include_in_schema=False)
