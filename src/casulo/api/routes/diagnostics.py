# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Diagnostics: JSON when a scope is named, plain text (the older form) when not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from casulo.api.diagnostics import Excerpt, entrypoint_log, events_of, inspection, moment_of
from casulo.api.routes import respond
from casulo.api.routes.context import Context, context
from casulo.model.errors import Code, InvalidRequest
from casulo.model.sandbox import Sandbox

router = APIRouter(tags=["Diagnostics"])

_TEXT = "text/plain; charset=utf-8"
_SCOPES = {"logs": ("container", "all"), "events": ("runtime", "all")}


class Diagnostics(BaseModel):
    """An excerpt, delivered inside the answer."""

    sandboxId: str
    kind: Literal["logs", "events"]
    scope: str
    delivery: Literal["inline"] = "inline"
    contentType: str = _TEXT
    truncated: bool
    content: str
    contentLength: int


@router.get(
    "/sandboxes/{sandbox_id}/diagnostics/logs", response_model=Diagnostics, responses=respond.errors(400, 404)
)
async def logs(
    request: Request,
    sandbox_id: str,
    scope: str | None = None,
    tail: Annotated[int, Query(ge=1, le=10000)] = 100,
    since: str | None = None,
) -> Response:
    """What the entrypoint wrote: its last lines, or those since a moment as far as that is known."""
    _check_scope("logs", scope)
    moment = None if since is None else moment_of(since, datetime.now(UTC))
    state = context(request)
    found = await _log_of(state, await state.lifecycle.get(sandbox_id), tail, moment)
    return _answer("logs", sandbox_id, scope, found)


@router.get(
    "/sandboxes/{sandbox_id}/diagnostics/events",
    response_model=Diagnostics,
    responses=respond.errors(400, 404),
)
async def events(
    request: Request,
    sandbox_id: str,
    scope: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """The turns of the sandbox's life that its record still shows."""
    _check_scope("events", scope)
    access = context(request).lifecycle
    lines = events_of(await access.get(sandbox_id), await access.history(sandbox_id))
    found = Excerpt("".join(f"{line}\n" for line in lines[-limit:]), len(lines) > limit)
    return _answer("events", sandbox_id, scope, found)


@router.get("/sandboxes/{sandbox_id}/diagnostics/inspect", response_model=None, responses=respond.errors(404))
async def inspect(request: Request, sandbox_id: str) -> Response:
    """The whole record."""
    return _text(inspection(await context(request).lifecycle.get(sandbox_id)) + "\n")


@router.get("/sandboxes/{sandbox_id}/diagnostics/summary", response_model=None, responses=respond.errors(404))
async def summary(
    request: Request,
    sandbox_id: str,
    tail: Annotated[int, Query(ge=1, le=10000)] = 50,
    event_limit: Annotated[int, Query(ge=1, le=500)] = 20,
) -> Response:
    """Record, events and output in one text."""
    state = context(request)
    sandbox = await state.lifecycle.get(sandbox_id)
    found = await _log_of(state, sandbox, tail)
    parts = {
        "inspect": inspection(sandbox),
        "events": "\n".join(events_of(sandbox, await state.lifecycle.history(sandbox_id))[-event_limit:]),
        "logs": found.text,
    }
    return _text("\n".join(f"== {title} ==\n{text.rstrip()}\n" for title, text in parts.items()))


async def _log_of(state: Context, sandbox: Sandbox, lines: int, since: datetime | None = None) -> Excerpt:
    runtime = state.lifecycle.runtimes.opened.get(sandbox.runtime)
    return await entrypoint_log(state.settings.data_dir, runtime, sandbox, lines, since)


def _check_scope(kind: str, scope: str | None) -> None:
    if scope is not None and scope not in _SCOPES[kind]:
        raise InvalidRequest(
            f"{kind} have no scope {scope!r}",
            code=Code.DIAGNOSTICS_SCOPE_UNSUPPORTED,
            hint=f"use one of: {', '.join(_SCOPES[kind])}",
        )


def _answer(kind: Literal["logs", "events"], sandbox_id: str, scope: str | None, found: Excerpt) -> Response:
    if scope is None:
        return _text(found.text)
    body = Diagnostics(
        sandboxId=sandbox_id,
        kind=kind,
        scope=scope,
        truncated=found.truncated,
        content=found.text,
        contentLength=len(found.text.encode()),
    )
    return respond.model(body)


def _text(text: str) -> Response:
    return Response(text, media_type=_TEXT, headers={"Deprecation": "true"})
