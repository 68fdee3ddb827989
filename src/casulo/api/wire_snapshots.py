# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of snapshots, spelled as on the wire. Absent members are left out, never null."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from casulo.api.wire import Pagination, pagination_of
from casulo.control.snapshots import MAX_NAME_LENGTH
from casulo.model.snapshot import Change, Snapshot
from casulo.runtimes.base import MOST_CHANGES
from casulo.store.query import Page


class CreateSnapshotRequest(BaseModel):
    """All of it may be left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_LENGTH)


class SnapshotStatusBody(BaseModel):
    """Where in its life a snapshot is: Creating, Ready, Failed or Deleting."""

    state: str
    reason: str
    message: str
    lastTransitionAt: datetime


class SnapshotBody(BaseModel):
    """A snapshot as every call returns it."""

    id: str
    sandboxId: str
    name: str | None = None
    status: SnapshotStatusBody
    createdAt: datetime


class SnapshotList(BaseModel):
    """One page, newest first."""

    items: list[SnapshotBody]
    pagination: Pagination


def snapshot_body(snapshot: Snapshot) -> SnapshotBody:
    """A snapshot on the wire."""
    status = snapshot.status
    return SnapshotBody(
        id=snapshot.id,
        sandboxId=snapshot.sandbox_id,
        name=snapshot.name or None,
        status=SnapshotStatusBody(
            state=status.state, reason=status.reason, message=status.message, lastTransitionAt=status.since
        ),
        createdAt=snapshot.created_at,
    )


def snapshot_list(page: Page[Snapshot]) -> SnapshotList:
    """One page on the wire."""
    items = [snapshot_body(snapshot) for snapshot in page.items]
    return SnapshotList(items=items, pagination=pagination_of(page))


class ChangeBody(BaseModel):
    """One path, and whether it was added, removed or changed."""

    path: str
    kind: str


class SnapshotDiff(BaseModel):
    """What changed, by path. `truncated` says that there is more."""

    changes: list[ChangeBody]
    truncated: bool


def snapshot_diff(changes: Sequence[Change]) -> SnapshotDiff:
    """Changes on the wire; names that are no text have their bytes replaced."""
    items = [
        ChangeBody(
            path=change.path.encode(errors="surrogateescape").decode(errors="replace"), kind=change.kind
        )
        for change in changes
    ]
    return SnapshotDiff(changes=items, truncated=len(items) >= MOST_CHANGES)
