# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Take, look at and delete snapshots. Restoring one is creating a sandbox with its `snapshotId`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from casulo.api import wire_snapshots as wire
from casulo.api.parse import snapshot_states_of
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.store.query import Page, SnapshotQuery

router = APIRouter(tags=["Snapshots"])


@router.post(
    "/sandboxes/{sandbox_id}/snapshots",
    status_code=202,
    response_model=wire.SnapshotBody,
    responses=respond.errors(400, 404, 409, 503),
)
async def create_snapshot(
    request: Request, sandbox_id: str, body: wire.CreateSnapshotRequest | None = None
) -> Response:
    """Begin to keep the files of a running sandbox; poll until it is Ready or Failed."""
    name = (body.name if body else None) or ""
    snapshot = await context(request).lifecycle.snapshots.take(sandbox_id, name)
    location = {"Location": f"/v1/snapshots/{snapshot.id}"}
    return respond.model(wire.snapshot_body(snapshot), 202, location)


@router.get("/snapshots", response_model=wire.SnapshotList, responses=respond.errors(400))
async def list_snapshots(
    request: Request,
    sandbox_id: Annotated[str | None, Query(alias="sandboxId")] = None,
    name: Annotated[str | None, Query(description="Exactly this name.")] = None,
    state: Annotated[list[str] | None, Query(description="Any of these states, in any case.")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000_000)] = 1,
    page_size: Annotated[int, Query(alias="pageSize", ge=1, le=200)] = 20,
) -> Response:
    """One page of the snapshots, newest first."""
    states = snapshot_states_of(state or [])
    if states is None:
        return respond.model(wire.snapshot_list(Page((), 0, page, page_size)))
    query = SnapshotQuery(sandbox_id, name, states, page, page_size)
    return respond.model(wire.snapshot_list(await context(request).lifecycle.snapshots.list(query)))


@router.get("/snapshots/{snapshot_id}", response_model=wire.SnapshotBody, responses=respond.errors(404))
async def get_snapshot(request: Request, snapshot_id: str) -> Response:
    """One snapshot."""
    return respond.model(wire.snapshot_body(await context(request).lifecycle.snapshots.get(snapshot_id)))


@router.get(
    "/snapshots/{snapshot_id}/diff/{other_id}",
    response_model=wire.SnapshotDiff,
    responses=respond.errors(400, 404, 409),
)
async def diff_snapshots(request: Request, snapshot_id: str, other_id: str) -> Response:
    """The files that differ from one snapshot to another that descends from the same image."""
    changes = await context(request).lifecycle.snapshots.diff(snapshot_id, other_id)
    return respond.model(wire.snapshot_diff(changes))


@router.delete(
    "/snapshots/{snapshot_id}", status_code=204, response_model=None, responses=respond.errors(404, 409)
)
async def delete_snapshot(request: Request, snapshot_id: str) -> Response:
    """Remove a snapshot; sandboxes that were made from it go on."""
    await context(request).lifecycle.snapshots.delete(snapshot_id)
    return respond.empty()
