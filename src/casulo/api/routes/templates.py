# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates: sandboxes that were started, waited for and kept. Creating with `templateId` begins with one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from casulo.api import wire_templates as wire
from casulo.api.parse import metadata_filter
from casulo.api.routes import respond
from casulo.api.routes.context import context


async def _supported(request: Request) -> None:
    """Where nothing can be kept, all of it is refused, whatever the request says."""
    context(request).lifecycle.templates.supported()


router = APIRouter(tags=["Templates"], dependencies=[Depends(_supported)])


@router.post(
    "/templates",
    status_code=201,
    response_model=wire.TemplateBody,
    responses=respond.errors(400, 403, 501, 503),
)
async def create_template(request: Request, body: wire.CreateTemplateRequest) -> Response:
    """Begin to make a template; poll until its phase is Succeeded or Failed."""
    template = await context(request).lifecycle.templates.create(body.draft(), body.ordered())
    location = {"Location": f"/v1/templates/{template.id}"}
    return respond.model(wire.template_body(template), 201, location)


@router.get("/templates", response_model=wire.TemplateList, responses=respond.errors(400, 501))
async def list_templates(
    request: Request,
    metadata: Annotated[list[str] | None, Query(description="All of these `key=value&…` pairs.")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000_000)] = 1,
    page_size: Annotated[int, Query(alias="pageSize", ge=1, le=200)] = 20,
) -> Response:
    """One page of the templates, newest first."""
    pairs = metadata_filter(metadata or [])
    found = await context(request).lifecycle.templates.list(pairs, page, page_size)
    return respond.model(wire.template_list(found))


@router.post("/templates/prune", response_model=wire.PruneResponse, responses=respond.errors(400, 403, 501))
async def prune_templates(request: Request, body: wire.PruneRequest | None = None) -> Response:
    """Remove templates that nobody needs. Not part of the official protocol."""
    asked = body or wire.PruneRequest()
    told = await context(request).lifecycle.templates.prune(unused=asked.unused, dry=asked.dryRun)
    return respond.model(wire.prune_response(told))


@router.get("/templates/{template_id}", response_model=wire.TemplateBody, responses=respond.errors(404, 501))
async def get_template(request: Request, template_id: str) -> Response:
    """One template."""
    return respond.model(wire.template_body(await context(request).lifecycle.templates.get(template_id)))


@router.delete(
    "/templates/{template_id}",
    status_code=204,
    response_model=None,
    responses=respond.errors(404, 409, 501),
)
async def delete_template(request: Request, template_id: str) -> Response:
    """Remove a template; sandboxes that were made from it go on."""
    await context(request).lifecycle.templates.delete(template_id)
    return respond.empty()
