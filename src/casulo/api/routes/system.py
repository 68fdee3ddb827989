# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""About the server itself: health, version, capabilities, and the telemetry that clients send."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from casulo import __version__
from casulo.api import wire
from casulo.api.routes import respond
from casulo.api.routes.context import context

open_router = APIRouter(tags=["Server"])
"""Served without `/v1` only, and without a key."""

router = APIRouter(tags=["Server"])
v1_router = APIRouter(tags=["Server"])
"""Served below `/v1` only."""


@open_router.get("/health", response_model=wire.Health)
async def health() -> Response:
    """The server answers."""
    return respond.model(wire.Health())


@open_router.get("/version", response_model=wire.Version)
async def version() -> Response:
    """The server's version."""
    return respond.model(wire.Version(version=__version__))


@router.get("/capabilities", response_model=wire.CapabilityReport, responses=respond.errors())
async def capabilities(request: Request) -> Response:
    """What the enabled runtimes can do on this host."""
    registry = context(request).lifecycle.runtimes
    runtimes = [
        wire.RuntimeReport(
            name=runtime.name,
            default=runtime is registry.default,
            isolations=sorted(runtime.capabilities.isolations),
            features=sorted(runtime.capabilities.features),
            missing=dict(sorted(runtime.capabilities.missing.items())),
        )
        for runtime in registry.opened.values()
    ]
    return respond.model(wire.CapabilityReport(version=__version__, runtimes=runtimes))


@v1_router.post("/metrics/events", status_code=204, response_model=None, responses=respond.errors())
async def metrics_event(event: wire.MetricsEvent) -> Response:
    """Accepted and forgotten: this server reports nothing to anybody."""
    del event
    return respond.empty()
