# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The routes of the lifecycle API, and the OpenAPI document that describes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from casulo import __version__
from casulo.api.auth import HEADER
from casulo.api.routes import (
    diagnostics,
    forks,
    keys,
    metrics,
    policies,
    pools,
    sandboxes,
    snapshots,
    system,
    templates,
)

_VERSIONED = (sandboxes, forks, policies, snapshots, diagnostics, keys, pools, templates, system)
"""Their routes are served below `/v1` and without it."""

_DESCRIPTION = (
    "Lifecycle of sandboxes. Every path is also served without `/v1`. Any port of a sandbox is reached at "
    "`/v1/sandboxes/{id}/proxy/{port}/{path}` with every method, and as a WebSocket. Programs there see "
    "`Host: localhost:{port}`, which browser debug ports and development servers accept; what the caller "
    "used is in `X-Forwarded-Host`. `Authorization` and `Cookie` are not passed on."
)


def documented_routes() -> APIRouter:
    """Every route once, in the form that is documented."""
    router = _router()
    router.include_router(system.open_router)
    router.include_router(metrics.router)
    for module in _VERSIONED:
        router.include_router(module.router, prefix="/v1")
    router.include_router(system.v1_router, prefix="/v1")
    return router


def served_routes() -> Iterator[tuple[APIRouter, str]]:
    """Every router with its prefix, the busiest first. Not nested: each level of nesting is searched anew."""
    for prefix in ("/v1", ""):
        for module in _VERSIONED:
            yield module.router, prefix
    yield system.v1_router, "/v1"
    yield system.open_router, ""
    yield metrics.router, ""


@cache
def schema() -> dict[str, Any]:
    """The document: a function of the code alone."""
    document = get_openapi(
        title="Casulo", version=__version__, description=_DESCRIPTION, routes=documented_routes().routes
    )
    key = {"type": "apiKey", "in": "header", "name": HEADER}
    document["components"]["securitySchemes"] = {"ApiKey": key}
    document["security"] = [{"ApiKey": []}]
    for path in ("/health", "/version"):
        document["paths"][path]["get"]["security"] = []
    return document


def _router() -> APIRouter:
    return APIRouter(generate_unique_id_function=_name_of)


def _name_of(route: APIRoute) -> str:
    return route.name
