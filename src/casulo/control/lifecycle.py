# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The lifecycle service: everything that the API may ask about a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from casulo.control.settings import ControlSettings
from casulo.model.draft import Draft
from casulo.model.sandbox import Handle, Sandbox
from casulo.runtimes.registry import Registry
from casulo.store.query import Page, Query
from casulo.store.store import Store


class Lifecycle:
    """Create, look at, change and end sandboxes. One object per server; errors are typed."""

    def __init__(self, store: Store, runtimes: Registry, settings: ControlSettings) -> None:
        self.store = store
        self.runtimes = runtimes
        self.settings = settings

    async def open(self) -> None:
        """Open the runtimes, make store and reality agree, start expiry. The store must be open."""
        raise RuntimeError("being written")

    async def close(self) -> None:
        """Stop expiry, finish or undo what is in flight, close runtimes. Sandboxes keep running."""
        raise RuntimeError("being written")

    async def create(
        self, draft: Draft, *, idempotency_key: str | None = None, request_hash: str = ""
    ) -> Sandbox:
        """Start a sandbox and return it Running.

        Cancelling the call undoes everything, unless an idempotency key was given. With a key, the
        same key and hash give the same sandbox, also concurrently and after a restart; another hash
        is a Conflict (IDEMPOTENCY_CONFLICT).
        """
        raise RuntimeError("being written")

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox, or NotFound."""
        raise RuntimeError("being written")

    async def list(self, query: Query) -> Page:
        """One page, newest first."""
        raise RuntimeError("being written")

    async def delete(self, sandbox_id: str) -> None:
        """Remove every trace; returns when done. NotFound when there is none (any more)."""
        raise RuntimeError("being written")

    async def patch_metadata(self, sandbox_id: str, changes: Mapping[str, str | None]) -> Sandbox:
        """Merge `changes`, None removes. Checks labels with the patch's own error codes."""
        raise RuntimeError("being written")

    async def renew(self, sandbox_id: str, until: datetime) -> datetime:
        """Set the end of life (aware datetime) and return it.

        InvalidRequest (INVALID_EXPIRATION) when not in the future; Conflict (same code) when the
        sandbox has no automatic expiry.
        """
        raise RuntimeError("being written")

    async def pause(self, sandbox_id: str) -> Sandbox:
        """Freeze; returns it Paused. Unsupported when its runtime cannot."""
        raise RuntimeError("being written")

    async def resume(self, sandbox_id: str) -> Sandbox:
        """Thaw; returns it Running."""
        raise RuntimeError("being written")

    async def endpoint(self, sandbox_id: str, port: int) -> Handle:
        """Where the sandbox's daemon is; `port` is only checked.

        NotFound with ENDPOINT_NOT_READY while it starts, Conflict (SANDBOX_NOT_RUNNING) once it
        ended or is being deleted.
        """
        raise RuntimeError("being written")

    async def renew_on_access(self, sandbox_id: str) -> None:
        """A proxied request happened: extend the life of a sandbox that asked for that.

        Cheap to call on every request, and never an error for the request that caused it.
        """
        raise RuntimeError("being written")
