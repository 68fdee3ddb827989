# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots: the files of a sandbox, kept for sandboxes to come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from casulo.client.records import moment, parse
from casulo.client.transport import Answer
from casulo.model.errors import Code, RuntimeFailure, TimedOut

DEFAULT_TIMEOUT = 600.0
_FIRST_POLL = 0.01
_SLOWEST_POLL = 0.25


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as the server describes it: Creating, Ready, Failed or Deleting."""

    id: str
    sandbox_id: str
    state: str
    reason: str
    message: str
    created_at: datetime
    name: str = ""

    @staticmethod
    def read(data: Any) -> Snapshot:
        """From the wire's Snapshot object."""
        status = data["status"]
        return Snapshot(
            id=str(data["id"]),
            sandbox_id=str(data["sandboxId"]),
            state=str(status["state"]),
            reason=str(status.get("reason") or ""),
            message=str(status.get("message") or ""),
            created_at=moment(data["createdAt"]),
            name=str(data.get("name") or ""),
        )


@dataclass(frozen=True)
class SnapshotPage:
    """One page of a listing, newest first. Iterating gives its items."""

    items: tuple[Snapshot, ...]
    page: int
    page_size: int
    total_items: int
    total_pages: int
    has_next_page: bool

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @staticmethod
    def read(data: Any) -> SnapshotPage:
        """From the wire's listing."""
        paging = data["pagination"]
        return SnapshotPage(
            items=tuple(Snapshot.read(item) for item in data["items"]),
            page=int(paging["page"]),
            page_size=int(paging["pageSize"]),
            total_items=int(paging["totalItems"]),
            total_pages=int(paging["totalPages"]),
            has_next_page=bool(paging["hasNextPage"]),
        )


@dataclass(frozen=True)
class Change:
    """One path that differs between two snapshots: it was `added`, `removed` or `changed`."""

    path: str
    kind: str


class AsyncSnapshots:
    """The snapshots of one server. Restore one with `Sandbox.create(snapshot=…)`."""

    def __init__(self, call: Callable[..., Awaitable[Answer]]) -> None:
        self._call = call

    async def create(
        self,
        sandbox_id: str,
        name: str | None = None,
        *,
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Snapshot:
        """Keep the files of a running sandbox. With `wait` it is Ready when this returns.

        Raises RuntimeFailure when it failed, and TimedOut when it was not done within `timeout`
        seconds; the server then goes on with it.
        """
        body = {"name": name} if name is not None else {}
        answer = await self._call("POST", f"/sandboxes/{quote(sandbox_id, safe='')}/snapshots", content=body)
        snapshot = parse(Snapshot.read, answer.json())
        return await self._ready(snapshot, timeout) if wait else snapshot

    async def list(
        self,
        *,
        sandbox_id: str | None = None,
        name: str | None = None,
        states: Iterable[str] = (),
        page: int = 1,
        page_size: int = 20,
    ) -> SnapshotPage:
        """One page of the snapshots of one sandbox, with exactly this name, in any of `states`."""
        query = [("state", state) for state in states]
        query += [(key, value) for key, value in (("sandboxId", sandbox_id), ("name", name)) if value]
        query += [("page", str(page)), ("pageSize", str(page_size))]
        answer = await self._call("GET", f"/snapshots?{urlencode(query, quote_via=quote, safe='')}")
        return parse(SnapshotPage.read, answer.json())

    async def get(self, snapshot_id: str) -> Snapshot:
        """One snapshot; NotFound when it is gone."""
        return parse(Snapshot.read, (await self._call("GET", _path(snapshot_id))).json())

    async def diff(self, old_id: str, new_id: str) -> Sequence[Change]:
        """The files that differ from one snapshot to another that descends from the same image."""
        path = f"{_path(old_id)}/diff/{quote(new_id, safe='')}"
        told = (await self._call("GET", path)).json()
        return tuple(Change(str(item["path"]), str(item["kind"])) for item in told["changes"])

    async def delete(self, snapshot_id: str) -> None:
        """Remove it; sandboxes made from it go on. NotFound when it is gone already."""
        await self._call("DELETE", _path(snapshot_id))

    async def _ready(self, snapshot: Snapshot, limit: float) -> Snapshot:
        deadline, pause = time.monotonic() + limit, _FIRST_POLL
        while snapshot.state != "Ready":
            if snapshot.state != "Creating":
                raise RuntimeFailure(
                    f"snapshot {snapshot.id} is {snapshot.state}: {snapshot.message or snapshot.reason}",
                    code=Code.SNAPSHOT_CREATE_FAILED,
                )
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"snapshot {snapshot.id} is still being made after {limit:g} s",
                    code=Code.SNAPSHOT_NOT_READY,
                    hint="look at it again with `osb snapshot get`",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)
            snapshot = await self.get(snapshot.id)
        return snapshot


def _path(snapshot_id: str) -> str:
    return f"/snapshots/{quote(snapshot_id, safe='')}"
