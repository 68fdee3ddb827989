# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Fork a running sandbox: several others that begin where it stands. Not part of the official protocol."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from casulo.api import wire
from casulo.api.endpoints import endpoint_for
from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.control.forks import MOST, Wish
from casulo.model.sandbox import EXECD_PORT, MIN_TIMEOUT_SECONDS, Sandbox

router = APIRouter(tags=["Sandboxes"])


class ForkRequest(BaseModel):
    """What the children are; everything else is as with their parent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: StrictInt = Field(default=1, ge=1, le=MOST)
    timeout: StrictInt | None = Field(
        default=None, ge=MIN_TIMEOUT_SECONDS, description="Seconds to live; absent or null: until deleted."
    )
    env: dict[str, str | None] | None = Field(default=None, description="Added to their parent's.")


class ForkResponse(BaseModel):
    """The children, running."""

    items: list[wire.CreateSandboxResponse]


@router.post(
    "/sandboxes/{sandbox_id}/forks",
    status_code=202,
    response_model=ForkResponse,
    responses=respond.errors(400, 403, 404, 409, 503),
)
async def fork_sandbox(request: Request, sandbox_id: str, body: ForkRequest) -> Response:
    """Make `count` children of a running sandbox, with its files and, where snapshots keep it, its memory.

    It stands still meanwhile. All children run when this returns, or an error leaves none.
    """
    state = context(request)
    env = {key: value for key, value in (body.env or {}).items() if value is not None}
    children = await state.lifecycle.fork(sandbox_id, Wish(body.count, body.timeout, env))
    return respond.model(ForkResponse(items=[_item(request, child) for child in children]), 202)


def _item(request: Request, child: Sandbox) -> wire.CreateSandboxResponse:
    if child.handle is None:
        return wire.create_response(child, None)
    eip = context(request).settings.server.eip
    found = endpoint_for(request.scope, child.id, EXECD_PORT, child.handle, eip=eip, proxied=False)
    return wire.create_response(child, found)
