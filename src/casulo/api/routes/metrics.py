# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the server counts, for Prometheus. Needs an admin key, which may come as a bearer token here."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from casulo.api.measures import CONTENT_TYPE
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.model.keys import Scope

router = APIRouter(tags=["Server"])
"""Served without `/v1` only."""


@router.get("/metrics", response_model=None, responses=respond.errors(403))
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms as text."""
    state = context(request)
    state.lifecycle.caller.require(Scope.ADMIN)
    return Response(await state.measures.exposition(), headers={"Content-Type": CONTENT_TYPE})
