# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Create, look at, change and end sandboxes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from casulo.api import wire
from casulo.api.endpoints import endpoint_for
from casulo.api.parse import draft_of, metadata_filter, port_of, states_of
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.api.routes.create import create_or_cancel
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import EGRESS_PORT, EXECD_PORT, Handle
from casulo.model.template import is_template
from casulo.store.query import Page
from casulo.store.query import Query as StoreQuery

ORIGIN_HEADER = "OPEN-SANDBOX-ORIGIN"
router = APIRouter(tags=["Sandboxes"])


@router.post(
    "/sandboxes",
    status_code=202,
    response_model=wire.CreateSandboxResponse,
    responses=respond.errors(400, 403, 409, 501, 503),
)
async def create_sandbox(
    request: Request,
    body: wire.CreateSandboxRequest,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Start a sandbox and return it running.

    With an `Idempotency-Key`, the same request sent again gives the same sandbox. Without one, a
    caller that goes away before the answer gets no sandbox.
    """
    state = context(request)
    sandbox = await create_or_cancel(state.lifecycle, request, draft_of(body), idempotency_key)
    endpoint = _daemon(request, sandbox.id, sandbox.handle) if sandbox.handle else None
    location = {"Location": f"/v1/sandboxes/{sandbox.id}"}
    return respond.model(wire.create_response(sandbox, endpoint), 202, location)


@router.get("/sandboxes", response_model=wire.SandboxList, responses=respond.errors(400))
async def list_sandboxes(
    request: Request,
    state: Annotated[list[str] | None, Query(description="Any of these states, in any case.")] = None,
    metadata: Annotated[list[str] | None, Query(description="All of these `key=value&…` pairs.")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000_000)] = 1,
    page_size: Annotated[int, Query(alias="pageSize", ge=1, le=200)] = 20,
) -> Response:
    """One page of the sandboxes, newest first."""
    states, pairs = states_of(state or []), metadata_filter(metadata or [])
    if states is None:
        return respond.model(wire.list_body(Page((), 0, page, page_size)))
    query = StoreQuery(states, pairs, page, page_size)
    return respond.model(wire.list_body(await context(request).lifecycle.list(query)))


@router.get("/sandboxes/{sandbox_id}", response_model=wire.SandboxBody, responses=respond.errors(404))
async def get_sandbox(request: Request, sandbox_id: str) -> Response:
    """One sandbox."""
    return respond.model(wire.sandbox_body(await context(request).lifecycle.get(sandbox_id)))


@router.delete(
    "/sandboxes/{sandbox_id}", status_code=204, response_model=None, responses=respond.errors(404, 409)
)
async def delete_sandbox(request: Request, sandbox_id: str) -> Response:
    """Stop a sandbox and remove every trace of it."""
    await context(request).lifecycle.delete(sandbox_id)
    return respond.empty()


@router.patch(
    "/sandboxes/{sandbox_id}/metadata",
    response_model=wire.SandboxBody,
    responses=respond.errors(400, 404),
)
async def patch_metadata(request: Request, sandbox_id: str, changes: dict[str, str | None]) -> Response:
    """Set the given keys, remove those that are null, keep the others."""
    sandbox = await context(request).lifecycle.patch_metadata(sandbox_id, changes)
    return respond.model(wire.sandbox_body(sandbox))


@router.post(
    "/sandboxes/{sandbox_id}/pause",
    status_code=202,
    response_model=None,
    responses=respond.errors(400, 404, 409),
)
async def pause_sandbox(request: Request, sandbox_id: str) -> Response:
    """Freeze a running sandbox; its end of life still comes."""
    await context(request).lifecycle.pause(sandbox_id)
    return respond.empty(202)


@router.post(
    "/sandboxes/{sandbox_id}/resume",
    status_code=202,
    response_model=None,
    responses=respond.errors(400, 404, 409),
)
async def resume_sandbox(request: Request, sandbox_id: str) -> Response:
    """Let a paused sandbox go on."""
    await context(request).lifecycle.resume(sandbox_id)
    return respond.empty(202)


@router.post(
    "/sandboxes/{sandbox_id}/renew-expiration",
    response_model=wire.RenewResponse,
    responses=respond.errors(400, 404, 409),
)
async def renew_expiration(request: Request, sandbox_id: str, body: wire.RenewRequest) -> Response:
    """Move the end of life, earlier or later."""
    until = await context(request).lifecycle.renew(sandbox_id, body.expiresAt)
    return respond.model(wire.RenewResponse(expiresAt=until))


@router.get(
    "/sandboxes/{sandbox_id}/endpoints/{port}",
    response_model=wire.Endpoint,
    responses=respond.errors(400, 404, 409),
)
async def get_endpoint(
    request: Request,
    sandbox_id: str,
    port: str,
    use_server_proxy: bool = False,
    expires: Annotated[int | None, Query(description="Signed endpoints are not supported.")] = None,
) -> Response:
    """Where a port of a sandbox is reached."""
    number = port_of(port)
    if expires is not None:
        raise _no_signed_endpoints(expires, use_server_proxy)
    state = context(request)
    handle = await state.lifecycle.endpoint(sandbox_id, number)
    policies = number == EGRESS_PORT and await state.lifecycle.policies.supported(sandbox_id)
    found = endpoint_for(
        request.scope,
        sandbox_id,
        number,
        handle,
        eip=state.settings.server.eip,
        proxied=use_server_proxy,
        egress_token=state.tokens.of(sandbox_id) if policies else None,
    )
    return respond.model(found, headers=await _origin(request, sandbox_id))


async def _origin(request: Request, sandbox_id: str) -> dict[str, str] | None:
    """Tells clients that the sandbox began with a template."""
    sandbox = await context(request).lifecycle.get(sandbox_id)
    return {ORIGIN_HEADER: "template"} if is_template(sandbox.spec.snapshot_id) else None


def _daemon(request: Request, sandbox_id: str, handle: Handle) -> wire.Endpoint:
    eip = context(request).settings.server.eip
    return endpoint_for(request.scope, sandbox_id, EXECD_PORT, handle, eip=eip, proxied=False)


def _no_signed_endpoints(expires: int, use_server_proxy: bool) -> InvalidRequest:
    if use_server_proxy:
        return InvalidRequest(
            "expires and use_server_proxy exclude each other",
            code=Code.INVALID_PARAMETER,
            hint="leave one of them out",
        )
    return Unsupported(
        f"expires={expires}: this server does not sign endpoints",
        code=Code.API_NOT_SUPPORTED,
        hint="leave it out; an endpoint is valid as long as its sandbox runs",
    )
