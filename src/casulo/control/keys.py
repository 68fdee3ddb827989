# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The API keys of this server: made, looked up by what a caller shows, changed and removed.

Secrets are random and long, so their plain digest can be kept and looked up: who could read the
digests could neither guess a secret nor learn anything from how long a lookup takes.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound
from casulo.model.keys import Caller, Key, Limits, Scope, Usage, check_name
from casulo.store.store import Store

_PREFIX = "casulo_"


class Keys:
    """All keys are kept in memory; the store is written before memory changes."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._by_name: dict[str, Key] = {}
        self._by_digest: dict[str, Caller] = {}

    async def refresh(self) -> None:
        """Read them again; another server may have changed them."""
        found = await self._store.keys()
        self._by_name = {key.name: key for key in found}
        self._by_digest = {key.digest: _caller(key) for key in found}

    @property
    def exist(self) -> bool:
        """Whether there is any key besides the server's own."""
        return bool(self._by_name)

    def caller(self, secret: bytes) -> Caller | None:
        """Whose secret it is."""
        return self._by_digest.get(_digest(secret))

    async def create(
        self, name: str, scopes: Iterable[Scope], limits: Limits, shared_with: str | None = None
    ) -> tuple[Key, str]:
        """A new key and its secret, which nobody can read again.

        With `shared_with`, the name of another key, both see the same sandboxes.
        """
        if not (granted := frozenset(scopes)):
            raise InvalidRequest(f"key {name!r}: no scope is given", code=Code.INVALID_PARAMETER)
        key_id, secret = str(uuid.uuid4()), _PREFIX + secrets.token_urlsafe(32)
        owner = key_id if shared_with is None else self.get(shared_with).owner
        key = Key(key_id, check_name(name), owner, granted, _digest(secret.encode()), self._now(), limits)
        await self._write(key)
        return key, secret

    async def rotate(self, name: str) -> tuple[Key, str]:
        """Give a key another secret; the old one is void at once."""
        secret = _PREFIX + secrets.token_urlsafe(32)
        key = replace(self.get(name), digest=_digest(secret.encode()), rotated_at=self._now())
        await self._write(key)
        return key, secret

    async def remove(self, name: str) -> None:
        """Make a key void. What it made stays until it expires or somebody else deletes it."""
        await self._store.remove_key(self.get(name).id)
        await self.refresh()

    def get(self, name: str) -> Key:
        """The key, or NotFound."""
        if name not in self._by_name:
            raise NotFound(
                f"no key is called {name!r}", code=Code.KEY_NOT_FOUND, hint="`osb key ls` lists them"
            )
        return self._by_name[name]

    async def list(self) -> list[tuple[Key, Usage]]:
        """Every key, and what its owner's sandboxes hold."""
        return [(key, await self._store.usage(key.owner)) for key in self._by_name.values()]

    async def _write(self, key: Key) -> None:
        if not await self._store.put_key(key):
            raise Conflict(
                f"there is a key called {key.name!r} already",
                code=Code.KEY_EXISTS,
                hint="choose another name, or give that key another secret with `osb key rotate`",
            )
        await self.refresh()


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def _caller(key: Key) -> Caller:
    return Caller(key.name, key.owner, key.scopes, key.limits)
