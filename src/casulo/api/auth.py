# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Who may call: the API key of the server, compared in constant time."""

from __future__ import annotations

import hmac

from casulo.api.proxy.headers import value_of
from casulo.api.proxy.upstream import Headers
from casulo.model.errors import Code, Unauthenticated

HEADER = "OPEN-SANDBOX-API-KEY"
OPEN_PATHS = frozenset({"/health", "/version", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})

_HINT = f"send it in the header {HEADER}; a local server keeps it in the file api-key of its data directory"


class KeyCheck:
    """Lets everybody pass when no key is configured."""

    def __init__(self, api_key: str | None) -> None:
        self._key = api_key.encode() if api_key else None

    def require(self, headers: Headers) -> None:
        """Raise Unauthenticated unless the right key is among the headers."""
        if self._key is None:
            return
        given = value_of(headers, HEADER.lower().encode())
        if not given:
            raise Unauthenticated("this server needs an API key", code=Code.MISSING_API_KEY, hint=_HINT)
        if not hmac.compare_digest(given, self._key):
            raise Unauthenticated("the API key is wrong", code=Code.INVALID_API_KEY, hint=_HINT)
