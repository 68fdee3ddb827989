# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The credential vault's API at a sandbox's port 18080: strict JSON in, no value out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Scope

from casulo.api.endpoints import is_local
from casulo.control.access import VaultAccess
from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import Code, Conflict, Forbidden, InvalidRequest, NotFound
from casulo.model.vault import invalid
from casulo.model.vaultwire import binding_state, credential_state, parse_create, parse_patch, state

PATH = "/credential-vault"
LARGEST_BODY = 1 << 20
_Act = Callable[[VaultAccess, str, Request], Awaitable[Response]]


class Vaults:
    """Answers requests below `PATH`."""

    def __init__(self, settings: VaultSettings) -> None:
        self._settings = settings

    async def answer(self, vaults: VaultAccess, sandbox_id: str, path: str, request: Request) -> Response:
        """Answer one; `path` is as it came, without its query."""
        rest = path.removeprefix(PATH).split("/")[1:]
        if rest == ["_active"]:
            raise Forbidden("the values themselves are for the egress process only", code=Code.VAULT_INTERNAL)
        if rest:
            return await self._part(vaults, sandbox_id, rest, request)
        act = _ACTS.get(request.method)
        if act is None:
            return _not_allowed(request, _ACTS)
        if request.method != "GET":
            self._require_protection(request.scope)
        return await act(vaults, sandbox_id, request)

    async def _part(
        self, vaults: VaultAccess, sandbox_id: str, rest: list[str], request: Request
    ) -> Response:
        what, *names = rest
        if what not in ("credentials", "bindings") or len(names) > 1 or "" in names:
            raise NotFound(f"there is no {PATH}/{'/'.join(rest)} here", code=Code.NO_SUCH_ROUTE)
        if request.method != "GET":
            return _not_allowed(request, ["GET"])
        vault = await vaults.get(sandbox_id)
        if not names:
            return JSONResponse({"revision": vault.revision, what: state(vault)[what]})
        name = unquote(names[0])
        if what == "credentials" and name in vault.credentials:
            return JSONResponse(credential_state(vault.credentials[name]))
        if what == "bindings" and name in vault.bindings:
            return JSONResponse(binding_state(vault.bindings[name]))
        raise NotFound(f"the vault has no {what[:-1]} {name!r}", code=Code.VAULT_NOT_FOUND)

    def _require_protection(self, scope: Scope) -> None:
        if self._settings.require_tls and not self._protected(scope):
            raise Conflict(
                "a vault is not changed over a connection that others could read",
                code=Code.VAULT_UNPROTECTED,
                hint="put a proxy with TLS before the server, on its machine or in [vault] trusted_proxies, "
                "that sets X-Forwarded-Proto",
            )

    def _protected(self, scope: Scope) -> bool:
        """From this machine, over TLS, or through a proxy that is believed when it says so."""
        if scope["scheme"] == "https" or is_local(scope):
            return True
        given = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
        return [value.strip().lower() for value in given] == [b"https"] and self._is_trusted(scope)

    def _is_trusted(self, scope: Scope) -> bool:
        try:
            peer = ip_address((scope.get("client") or ("",))[0])
        except ValueError:
            return False
        return peer.is_loopback or any(peer in network for network in self._settings.trusted_proxies)


async def _get(vaults: VaultAccess, sandbox_id: str, _: Request) -> Response:
    return JSONResponse(state(await vaults.get(sandbox_id)))


async def _post(vaults: VaultAccess, sandbox_id: str, request: Request) -> Response:
    credentials, bindings = parse_create(await _json(request))
    note(
        request,
        credentials={"add": [each.name for each in credentials]},
        bindings={"add": [each.name for each in bindings]},
    )
    return JSONResponse(state(await vaults.create(sandbox_id, credentials, bindings)), 201)


async def _patch(vaults: VaultAccess, sandbox_id: str, request: Request) -> Response:
    patch = parse_patch(await _json(request))
    told = {
        what: {
            "add": [each.name for each in changes.add],
            "replace": [each.name for each in changes.replace],
            "delete": list(changes.delete),
        }
        for what, changes in (("credentials", patch.credentials), ("bindings", patch.bindings))
    }
    note(request, **{what: {k: v for k, v in each.items() if v} for what, each in told.items()})
    return JSONResponse(state(await vaults.patch(sandbox_id, patch)))


async def _delete(vaults: VaultAccess, sandbox_id: str, _: Request) -> Response:
    await vaults.delete(sandbox_id)
    return Response(status_code=204)


_ACTS: dict[str, _Act] = {"GET": _get, "POST": _post, "PATCH": _patch, "DELETE": _delete}


def note(request: Request, **told: Any) -> None:
    """What the audit log shall know of a change besides its path: names."""
    request.scope.setdefault("state", {})["audit"] = {"vault": {k: v for k, v in told.items() if v}}


def _not_allowed(request: Request, allowed: Any) -> Response:
    return PlainTextResponse(f"{request.method} is not possible here", 405, {"Allow": ", ".join(allowed)})


async def _json(request: Request) -> Any:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > LARGEST_BODY:
            raise InvalidRequest("the body is longer than 1 MiB", code=Code.VAULT_TOO_LARGE)
    try:
        return json.loads(bytes(content).decode(), object_pairs_hook=_members, parse_constant=_constant)
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise invalid("the body is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # Python reads no numbers of thousands of digits
        raise invalid("the body has a number that is too long") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise invalid("the body has an object with two members of one name")
    return made


def _constant(_: str) -> Any:
    raise invalid("the body has a number that is none")
