# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From the target of a request to the place in a sandbox that it means.

The rest of the path and the query are taken from the request line as they came, never decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes

from starlette.types import Scope

from casulo.api.proxy.pool import Peer
from casulo.model.errors import Code, InvalidRequest
from casulo.model.sandbox import EXECD_PORT, Handle

TOKEN_HEADER = "X-EXECD-ACCESS-TOKEN"
TARGET_EXTENSION = "casulo.target"
"""Scope extension that holds the request line's target, where the server can supply it."""

_HTTP_PORT = 80
_ROUTE = re.compile(rb"((?:/v1)?/sandboxes/([^/?]+)/proxy/([0-9]+))((?:[/?].*)?)", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """What the request line said. `prefix` is the part that stands for the sandbox's port."""

    prefix: bytes
    sandbox_id: str
    port: int
    rest: bytes

    @property
    def climbs(self) -> bool:
        """Whether a segment of the path, decoded, is `..`."""
        path = self.rest.partition(b"?")[0]
        return b".." in re.split(rb"[/\\]", unquote_to_bytes(path))


@dataclass(frozen=True)
class Route:
    """Where a request goes: the daemon of the sandbox, and what to ask it for."""

    peer: Peer
    port: int
    path: bytes
    host: bytes
    prefix: bytes
    token: bytes | None
    """The daemon's token, added by the server; None where the caller must bring it."""
    to_server: bool = False
    """Whether another server of the same store answers: it gets the request as it came, key included."""


def target_of(scope: Scope) -> Target | None:
    """The target if it is a proxy route, else None."""
    root = scope.get("root_path", "").encode()
    match = _ROUTE.fullmatch(raw_target(scope).removeprefix(root))
    if match is None:
        return None
    prefix, sandbox_id, port, rest = match.groups()
    rest = rest if rest.startswith(b"/") else b"/" + rest
    return Target(root + prefix, unquote(sandbox_id.decode("latin-1")), int(port[:6]), rest)


def raw_target(scope: Scope) -> bytes:
    """Path and query as the request line had them."""
    target: bytes = (scope.get("extensions") or {}).get(TARGET_EXTENSION, {}).get("raw", b"")
    if target.startswith(b"/"):
        return target
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return raw.partition(b"?")[0] + (b"?" + query if query else b"")


def check_port(port: int) -> None:
    """Refuse what is not a TCP port."""
    if not 0 < port < 65536:
        raise InvalidRequest(f"{port} is not a port", code=Code.INVALID_PORT, hint="use 1 to 65535")


def route_to(target: Target, handle: Handle) -> Route:
    """The daemon's own port is reached directly, every other one through the daemon's `/proxy`.

    Programs in the sandbox see `Host: localhost:<port>`, whatever the caller used: that is what
    browser debug ports and development servers accept.
    """
    direct = target.port == EXECD_PORT
    return Route(
        peer=Peer(target.sandbox_id, handle.host, handle.port),
        port=target.port,
        path=target.rest if direct else b"/proxy/%d%b" % (target.port, target.rest),
        host=b"localhost" if target.port == _HTTP_PORT else b"localhost:%d" % target.port,
        prefix=target.prefix,
        token=None if direct else handle.token.encode(),
    )
