# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The tokens that guard the policy API at each sandbox's port 18080."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path

AUTH_HEADER = "OPENSANDBOX-EGRESS-AUTH"
_KEY_FILE = "egress-key"


class Tokens:
    """One token for each sandbox, derived from a key that only this server has."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _KEY_FILE
        self._key: bytes | None = None

    def of(self, sandbox_id: str) -> str:
        """The token of a sandbox; the same after a restart."""
        digest = hmac.digest(self._secret(), sandbox_id.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest[:24]).decode()

    def _secret(self) -> bytes:
        if self._key is None:
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            except FileExistsError:
                self._key = self._path.read_bytes()
            else:
                self._key = secrets.token_bytes(32)
                with open(descriptor, "wb") as file:
                    file.write(self._key)
        return self._key
