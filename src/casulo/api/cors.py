# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cross-origin requests: any page may call, since a caller proves itself by a key and not by a cookie."""

from __future__ import annotations

from starlette.types import Scope

from casulo.api.proxy.headers import value_of
from casulo.api.proxy.upstream import Headers

_EXPOSED = b"OPEN-SANDBOX-ORIGIN, X-Request-ID, Retry-After, Location, EXECD-COMMANDS-TAIL-CURSOR"
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_ALLOW_ORIGIN = b"access-control-allow-origin"


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks beforehand if it may send a request."""
    return scope["method"] == "OPTIONS" and {b"origin", b"access-control-request-method"} <= {
        name for name, _ in scope["headers"]
    }


def preflight_headers(scope: Scope) -> Headers:
    """Yes to whatever the browser asks for."""
    wanted = value_of(scope["headers"], b"access-control-request-headers")
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"600"),
        *([(b"access-control-allow-headers", wanted)] if wanted else []),
    ]


def add(scope: Scope, headers: Headers) -> None:
    """Let the calling page read the answer, unless a sandbox's own program has already decided that."""
    origin = value_of(scope["headers"], b"origin")
    if origin is None or value_of(headers, _ALLOW_ORIGIN) is not None:
        return
    headers += [
        (_ALLOW_ORIGIN, origin),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"Origin"),
    ]
