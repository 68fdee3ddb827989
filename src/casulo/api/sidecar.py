# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Policies and credential vaults at a sandbox's port 18080, as the sidecars of other servers have them.

It is served here, behind the proxy route of that port, so it is out of the sandbox's reach. Its errors
are plain text, and a token of its own guards it: the one that endpoint lookups hand out.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from casulo.api import vaults
from casulo.api.errors import status_of
from casulo.api.routes import respond
from casulo.api.routes.policies import status_body
from casulo.api.tokens import AUTH_HEADER, Tokens
from casulo.api.vaults import Vaults
from casulo.control.access import Access, PolicyAccess
from casulo.control.policies import Status
from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import CasuloError, Code, InvalidRequest
from casulo.model.policywire import parse_policy, parse_rules, parse_targets

_LARGEST_BODY = 4 << 20
_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Sidecar:
    """Answers the requests that the proxy gets for port 18080."""

    def __init__(self, tokens: Tokens, settings: VaultSettings) -> None:
        self._tokens = tokens
        self._vaults = Vaults(settings)

    async def __call__(
        self, access: Access, sandbox_id: str, rest: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one request; `rest` is the path below the port."""
        request = Request(scope, receive)
        path = rest.partition(b"?")[0].decode("latin-1")
        try:
            answer = await self._answer(access, sandbox_id, path, request)
        except CasuloError as error:
            answer = PlainTextResponse(str(error), status_of(error))
        await answer(scope, receive, send)

    async def _answer(self, access: Access, sandbox_id: str, path: str, request: Request) -> Response:
        if path == "/healthz" and request.method in ("GET", "HEAD"):
            return PlainTextResponse("ok")
        given = request.headers.get(AUTH_HEADER, "")
        if not hmac.compare_digest(given.encode(), self._tokens.of(sandbox_id).encode()):
            return PlainTextResponse(f"the header {AUTH_HEADER} is missing or wrong", 401)
        if request.method in _CHANGES:
            request.scope.setdefault("state", {})[
                "audit"
            ] = {}  # a change of ours, though it came by the proxy
        if path == vaults.PATH or path.startswith(f"{vaults.PATH}/"):
            return await self._vaults.answer(access.vaults, sandbox_id, path, request)
        if path != "/policy":
            return PlainTextResponse(f"there is no {path} here", 404)
        act = _ACTS.get(request.method)
        if act is None:
            return PlainTextResponse(
                f"{request.method} is not possible here", 405, {"Allow": ", ".join(_ACTS)}
            )
        return await act(access.policies, sandbox_id, request)


async def _get(policies: PolicyAccess, sandbox_id: str, _: Request) -> Response:
    return _told(await policies.get(sandbox_id))


async def _put(policies: PolicyAccess, sandbox_id: str, request: Request) -> Response:
    body = await _body(request)
    status = await policies.replace(sandbox_id, parse_policy(_json(body) if body else None))
    return _told(status, "" if body else "an empty body denies everything")


async def _patch(policies: PolicyAccess, sandbox_id: str, request: Request) -> Response:
    return _told(await policies.merge(sandbox_id, parse_rules(_json(await _body(request)))))


async def _delete(policies: PolicyAccess, sandbox_id: str, request: Request) -> Response:
    return _told(await policies.remove(sandbox_id, parse_targets(_json(await _body(request)))))


_ACTS = {"GET": _get, "PUT": _put, "POST": _put, "PATCH": _patch, "DELETE": _delete}


def _told(status: Status, reason: str = "") -> Response:
    return respond.model(status_body(status, reason))


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > _LARGEST_BODY:
            raise InvalidRequest("the body is too large", code=Code.NETWORK_POLICY_TOO_LARGE)
    return bytes(content).strip()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}", code=Code.NETWORK_POLICY_INVALID) from None
