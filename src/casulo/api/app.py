# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The ASGI application: the routes, once below `/v1` and once without, inside the edge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from casulo import __version__
from casulo.api import errors, openapi
from casulo.api.auth import KeyCheck
from casulo.api.edge import Edge
from casulo.api.proxy.front import ProxyFront
from casulo.api.routes.context import Application
from casulo.control.lifecycle import Lifecycle
from casulo.settings import Settings


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
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.application = Application(settings, lifecycle)
    errors.install(app)
    app.include_router(openapi.documented_routes())
    app.include_router(openapi.versioned_routes(), include_in_schema=False)
    app.openapi = openapi.schema  # type: ignore[method-assign]
    app.add_middleware(Edge, keys=KeyCheck(settings.server.api_key, lifecycle.keys), proxy=proxy)
    return app
