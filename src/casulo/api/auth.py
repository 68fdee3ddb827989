# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who calls: the server's own key, compared in constant time, or one of those that its operator made."""

from __future__ import annotations

import hmac

from starlette.types import Scope as AsgiScope

from casulo.api.proxy.headers import value_of
from casulo.api.proxy.upstream import Headers
from casulo.control.keys import Keys
from casulo.model.errors import Code, Unauthenticated
from casulo.model.keys import GUEST, OPERATOR, Caller

HEADER = "OPEN-SANDBOX-API-KEY"
OPEN_PATHS = frozenset({"/health", "/version", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
METRICS_PATH = "/metrics"

_HINT = f"send it in the header {HEADER}; a local server keeps it in the file api-key of its data directory"
_NOBODY = Caller("nobody", "")


class KeyCheck:
    """Lets everybody pass as the operator when the server has no key of its own."""

    def __init__(self, api_key: str | None, keys: Keys) -> None:
        self._own = api_key.encode() if api_key else None
        self._keys = keys

    def caller(self, headers: Headers, *, bearer: bool = False) -> Caller:
        """Whose key is among the headers; Unauthenticated when there is none, or a wrong one.

        With `bearer` it may also come as a bearer token, which is what collectors of metrics can send.
        """
        given = value_of(headers, HEADER.lower().encode())
        if bearer and given is None:
            given = (value_of(headers, b"authorization") or b"").removeprefix(b"Bearer ")
        if self._own is None:
            return self._keys.caller(given or b"") or OPERATOR
        if not given:
            raise Unauthenticated("this server needs an API key", code=Code.MISSING_API_KEY, hint=_HINT)
        if hmac.compare_digest(given, self._own):
            return OPERATOR
        if found := self._keys.caller(given):
            return found
        raise Unauthenticated("the API key is wrong", code=Code.INVALID_API_KEY, hint=_HINT)

    def proxied(self, headers: Headers) -> Caller:
        """As `caller`, for a request to a sandbox's port: it needs a key only where there are several.

        With the server's own key alone, browsers reach web ports without one, as clients expect.
        """
        try:
            return self.caller(headers)
        except Unauthenticated:
            if self._keys.exist:
                raise
            return GUEST


def note_caller(scope: AsgiScope, caller: Caller) -> None:
    """Remember who sent the request of `scope`."""
    scope.setdefault("state", {})["caller"] = caller


def caller_of(scope: AsgiScope) -> Caller:
    """Who sent the request of `scope`; somebody without any right where nobody was asked for a key."""
    found: Caller = scope.get("state", {}).get("caller", _NOBODY)
    return found
