# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools of sandboxes that are started ahead. Creating with the extension `poolRef` takes one of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from casulo.api import wire_pools as wire
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.control.pools import Pools
from casulo.model.errors import Code, Unsupported
from casulo.model.keys import Scope

router = APIRouter(tags=["Pools"])


@router.post(
    "/pools", status_code=201, response_model=wire.PoolBody, responses=respond.errors(400, 403, 409, 501)
)
async def create_pool(request: Request, body: wire.CreatePoolRequest) -> Response:
    """Keep members ready, from now on and after every restart."""
    if body.template.image.auth:
        raise Unsupported(
            "template.image.auth: a pool keeps no logins",
            code=Code.NOT_SUPPORTED,
            hint="pull the image first with `osb image pull`",
        )
    pools = context(request).lifecycle.pools(Scope.ADMIN)
    pool = await pools.create(
        body.name, body.template.parsed(), body.capacitySpec.parsed(), body.refuseWhenEmpty
    )
    return _answer(pools, pool.name, 201)


@router.get("/pools", response_model=wire.PoolList, responses=respond.errors())
async def list_pools(request: Request) -> Response:
    """All pools."""
    pools = context(request).lifecycle.pools()
    found = [wire.pool_body(pool, pools.status(pool.name)) for pool in pools.list()]
    return respond.model(wire.PoolList(items=found))


@router.get("/pools/{name}", response_model=wire.PoolBody, responses=respond.errors(404))
async def get_pool(request: Request, name: str) -> Response:
    """One pool."""
    return _answer(context(request).lifecycle.pools(), name)


@router.put("/pools/{name}", response_model=wire.PoolBody, responses=respond.errors(400, 403, 404, 409))
async def change_pool(request: Request, name: str, body: wire.ChangePoolRequest) -> Response:
    """Another size. Sandboxes that came from the pool are not touched."""
    pools = context(request).lifecycle.pools(Scope.ADMIN)
    await pools.change(name, body.capacitySpec.parsed())
    return _answer(pools, name)


@router.delete("/pools/{name}", status_code=204, response_model=None, responses=respond.errors(403, 404, 409))
async def delete_pool(request: Request, name: str) -> Response:
    """Give up the pool and its waiting members. Sandboxes that came from it stay."""
    await context(request).lifecycle.pools(Scope.ADMIN).delete(name)
    return respond.empty()


def _answer(pools: Pools, name: str, status: int = 200) -> Response:
    return respond.model(wire.pool_body(pools.get(name), pools.status(name)), status)
