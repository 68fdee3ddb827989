# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which headers pass a proxy, in which direction, and what becomes of `Location`."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from casulo.api.proxy.route import TOKEN_HEADER, Route
from casulo.api.proxy.upstream import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
PRIVATE = frozenset(
    {
        b"host",
        b"authorization",
        b"cookie",
        b"open-sandbox-api-key",
        b"opensandbox-secure-access",
        b"opensandbox-access-renew",
        b"forwarded",
        b"x-real-ip",
    }
)
"""Meant for this server, or for whoever is in front of it; never for a program in a sandbox."""

PASSED_ON = b"casulo-passed-on"
"""Marks a request that another server of the same store has sent on."""

_TOKEN = TOKEN_HEADER.lower().encode()


def for_sandbox(scope: Scope, route: Route, *, without: Iterable[bytes] = ()) -> Headers:
    """The request's headers as the sandbox gets them: order, number and bytes kept."""
    headers: Headers = scope["headers"]
    if route.to_server:
        return _for_server(headers, without)
    dropped = HOP_BY_HOP | PRIVATE | named_in_connection(headers) | frozenset(without)
    if route.token is not None:
        dropped |= {_TOKEN}
    passed = [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in dropped and not lower.startswith(b"x-forwarded-")
    ]
    passed += _forwarded(scope, headers)
    if route.token is not None:
        passed.append((TOKEN_HEADER.encode(), route.token))
    return passed


def _for_server(headers: Headers, without: Iterable[bytes]) -> Headers:
    """As they came, and the mark that keeps two servers from sending a request to and fro."""
    dropped = HOP_BY_HOP | named_in_connection(headers) | {b"host", PASSED_ON} | frozenset(without)
    return [*((name, value) for name, value in headers if name.lower() not in dropped), (PASSED_ON, b"1")]


def _forwarded(scope: Scope, headers: Headers) -> Headers:
    secure = scope["scheme"] in ("https", "wss")
    added: Headers = [(b"X-Forwarded-Proto", b"https" if secure else b"http")]
    host = value_of(headers, b"host")
    if host is not None:
        added.append((b"X-Forwarded-Host", host))
    if scope.get("client"):
        added.append((b"X-Forwarded-For", str(scope["client"][0]).encode()))
    return added


def for_caller(headers: Headers, route: Route, caller_host: bytes | None) -> Headers:
    """The answer's headers as the caller gets them; only the first Date is kept."""
    dropped = HOP_BY_HOP | {b"server"} | named_in_connection(headers)
    passed: Headers = []
    dated = False
    for name, value in headers:
        lower = name.lower()
        if lower in dropped or (lower == b"date" and dated):
            continue
        dated = dated or lower == b"date"
        passed.append((name, relocated(value, route, caller_host) if lower == b"location" else value))
    return passed


def relocated(location: bytes, route: Route, caller_host: bytes | None) -> bytes:
    """A `Location` inside the sandbox's port, as the caller must write it.

    That is a path from the root, or an absolute address that names the host the program was
    called by. Everything else, relative paths included, is right as it is.
    """
    path = _own_path(location, {route.host, caller_host})
    if path is None or path == route.prefix or path.startswith((route.prefix + b"/", route.prefix + b"?")):
        return location if path is None else path
    inside = b"/proxy/%d" % route.port
    if path == inside or path.startswith((inside + b"/", inside + b"?")):
        path = path[len(inside) :]
    return route.prefix + path


def _own_path(location: bytes, hosts: set[bytes | None]) -> bytes | None:
    if location.startswith(b"/") and not location.startswith(b"//"):
        return location
    scheme, separator, rest = location.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return None
    host, slash, path = rest.partition(b"/")
    return slash + path or b"/" if host in hosts else None


def named_in_connection(headers: Headers) -> frozenset[bytes]:
    """Names of headers that the sender declared to be for this hop only."""
    return frozenset(
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    )


def value_of(headers: Headers, wanted: bytes) -> bytes | None:
    """The first value of a header given in lower case."""
    return next((value for name, value in headers if name.lower() == wanted), None)
