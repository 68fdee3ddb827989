# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Routes of the protocol that this version cannot serve. Each says so, in the caller's terms."""

from __future__ import annotations

from fastapi import APIRouter

from casulo.api.routes import respond
from casulo.model.errors import Code, Unsupported

router = APIRouter(tags=["Not supported"], responses=respond.errors(501))

_TEMPLATES = [
    ("POST", "/templates"),
    ("GET", "/templates"),
    ("GET", "/templates/{template_id}"),
    ("DELETE", "/templates/{template_id}"),
]


async def templates() -> None:
    """Templates are not supported."""
    raise Unsupported(
        "this server has no templates",
        code=Code.TEMPLATE_NOT_SUPPORTED,
        hint="create sandboxes from an image",
    )


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *(part.strip("{}") for part in path.strip("/").split("/"))])


for _endpoint, _routes in ((templates, _TEMPLATES),):
    for _method, _path in _routes:
        router.add_api_route(
            _path,
            _endpoint,
            methods=[_method],
            status_code=501,
            response_model=None,
            operation_id=_operation_id(_method, _path),
        )
