# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Make, list, rotate and remove API keys. For keys with the scope `admin` only."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from casulo.api import wire_keys as wire
from casulo.api.routes import respond
from casulo.api.routes.context import context

router = APIRouter(tags=["Keys"])


@router.post(
    "/keys", status_code=201, response_model=wire.NewKeyBody, responses=respond.errors(400, 403, 404, 409)
)
async def create_key(request: Request, body: wire.CreateKeyRequest) -> Response:
    """Make a key. Its secret is in this answer and nowhere else."""
    keys = context(request).lifecycle.keys
    key, secret = await keys.create(body.name, body.scopes, body.limits.parsed(), body.sharedWith)
    return respond.model(wire.new_key_body(key, secret), 201)


@router.get("/keys", response_model=wire.KeyList, responses=respond.errors(403))
async def list_keys(request: Request) -> Response:
    """Every key but the server's own, with what its sandboxes hold."""
    found = await context(request).lifecycle.keys.list()
    return respond.model(wire.KeyList(items=[wire.key_body(key, usage) for key, usage in found]))


@router.post("/keys/{name}/rotate", response_model=wire.NewKeyBody, responses=respond.errors(403, 404))
async def rotate_key(request: Request, name: str) -> Response:
    """Give a key another secret; the old one is void at once."""
    key, secret = await context(request).lifecycle.keys.rotate(name)
    return respond.model(wire.new_key_body(key, secret))


@router.delete("/keys/{name}", status_code=204, response_model=None, responses=respond.errors(403, 404))
async def remove_key(request: Request, name: str) -> Response:
    """Make a key void. Its sandboxes stay until they expire or an admin deletes them."""
    await context(request).lifecycle.keys.remove(name)
    return respond.empty()
