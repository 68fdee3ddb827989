# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""About the server itself: health, version, capabilities, and the telemetry that clients send."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from casulo import __version__
from casulo.api import wire
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.model.sandbox import Isolation
from casulo.runtimes.base import Capabilities, Runtime

open_router = APIRouter(tags=["Server"])
"""Served without `/v1` only, and without a key."""

router = APIRouter(tags=["Server"])
_OTHER = "isolation."
"""What the names of isolations start with that a runtime misses."""

v1_router = APIRouter(tags=["Server"])
"""Served below `/v1` only."""


class ServerInfo(BaseModel):
    """One of the servers that share a store."""

    id: str
    url: str
    alive: bool


class ServerList(BaseModel):
    """All of them."""

    items: list[ServerInfo]


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
    runtimes = [_report(runtime, runtime is registry.default) for runtime in registry.opened.values()]
    return respond.model(wire.CapabilityReport(version=__version__, runtimes=runtimes))


@v1_router.get("/servers", response_model=ServerList, responses=respond.errors(403))
async def servers(request: Request) -> Response:
    """The servers that share this one's store; none where it has a store of its own."""
    found = await context(request).lifecycle.servers()
    items = [ServerInfo(id=each.id, url=each.url, alive=each.alive) for each in found]
    return respond.model(ServerList(items=items))


def _report(runtime: Runtime, default: bool) -> wire.RuntimeReport:
    able = runtime.capabilities
    named = sorted(able.isolations - {Isolation.AUTO}) or [Isolation.AUTO]
    return wire.RuntimeReport(
        name=runtime.name,
        default=default,
        isolations=[_isolation(able, isolation) for isolation in named],
        missing={key: why for key, why in sorted(able.missing.items()) if key.startswith(_OTHER)},
    )


def _isolation(able: Capabilities, isolation: Isolation) -> wire.IsolationReport:
    ability = able.of(isolation)
    return wire.IsolationReport(
        name=isolation,
        default=isolation is able.chosen(Isolation.AUTO),
        engine=ability.engine,
        platform=ability.platform,
        features=sorted(ability.features),
        missing={key: why for key, why in sorted(ability.missing.items()) if not key.startswith(_OTHER)},
    )


@v1_router.post("/metrics/events", status_code=204, response_model=None, responses=respond.errors())
async def metrics_event(event: wire.MetricsEvent) -> Response:
    """Accepted and forgotten: this server reports nothing to anybody."""
    del event
    return respond.empty()
