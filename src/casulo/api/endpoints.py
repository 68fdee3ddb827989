# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""In which form a caller is told where a port of a sandbox is.

The addresses of sandboxes exist on this machine only. A caller on the same machine gets them
directly; everybody else gets the server's own proxy route.
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.types import Scope

from casulo.api.proxy.headers import value_of
from casulo.api.proxy.route import TOKEN_HEADER
from casulo.api.tokens import AUTH_HEADER
from casulo.api.wire import Endpoint
from casulo.model.sandbox import EGRESS_PORT, EXECD_PORT, Handle

_RELAYED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})


def endpoint_for(
    scope: Scope,
    sandbox_id: str,
    port: int,
    handle: Handle,
    *,
    eip: str | None,
    proxied: bool,
    egress_token: str | None = None,
) -> Endpoint:
    """The endpoint of `port` for whoever sent the request in `scope`.

    With an `egress_token` the policy API answers at its port, which is this server for every caller.
    """
    token = {TOKEN_HEADER: handle.token}
    policies = port == EGRESS_PORT and egress_token is not None
    if not proxied and not policies and is_local(scope):
        daemon = f"{_bracketed(handle.host)}:{handle.port}"
        return Endpoint(endpoint=daemon if port == EXECD_PORT else f"{daemon}/proxy/{port}", headers=token)
    return Endpoint(
        endpoint=f"{_public(scope, eip)}{_prefix(scope)}/sandboxes/{sandbox_id}/proxy/{port}",
        headers=token if port == EXECD_PORT else _egress_headers(egress_token) if policies else None,
    )


def _egress_headers(token: str | None) -> dict[str, str] | None:
    return None if token is None else {AUTH_HEADER: token}


def is_local(scope: Scope) -> bool:
    """Whether the caller runs on this machine: its address is a loopback one, or the server's own.

    A request that says it was relayed comes from somewhere else.
    """
    client, server = scope.get("client"), scope.get("server")
    if not client or any(name in _RELAYED for name, _ in scope["headers"]):
        return False
    try:
        return ip_address(client[0]).is_loopback or (server is not None and client[0] == server[0])
    except ValueError:
        return False


def _public(scope: Scope, eip: str | None) -> str:
    host = value_of(scope["headers"], b"host")
    if eip is None and host:
        return host.decode("latin-1")
    server = scope.get("server") or ("127.0.0.1", None)
    name = eip or server[0]
    has_port = ":" in name.rpartition("]")[2] and not _is_bare_ipv6(name)
    return name if has_port or server[1] is None else f"{_bracketed(name)}:{server[1]}"


def _prefix(scope: Scope) -> str:
    """What stood before `/sandboxes` in the request: a mount point, and `/v1` if the caller used it."""
    path: str = scope["path"]
    return path.partition("/sandboxes")[0]


def _bracketed(host: str) -> str:
    return f"[{host}]" if _is_bare_ipv6(host) else host


def _is_bare_ipv6(host: str) -> bool:
    return host.count(":") > 1 and not host.startswith("[")
