# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What can be asked of the store, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from casulo.model.sandbox import Exit, Sandbox
from casulo.model.snapshot import SnapshotState
from casulo.model.states import State

T = TypeVar("T")


@dataclass(frozen=True)
class Query:
    """One page of the list: any of `states` (empty: all) and every pair of `metadata`.

    `owner` None means everybody's.
    """

    states: frozenset[State] = frozenset()
    metadata: Mapping[str, str] = field(default_factory=dict)
    page: int = 1
    page_size: int = 20
    owner: str | None = None


@dataclass(frozen=True)
class SnapshotQuery:
    """One page of the snapshots that are of one sandbox, have one name, and are in any of `states`.

    `owner` None means everybody's. With `templates` those that are one, and else the others.
    """

    sandbox_id: str | None = None
    name: str | None = None
    states: frozenset[SnapshotState] = frozenset()
    page: int = 1
    page_size: int = 20
    owner: str | None = None
    templates: bool = False


@dataclass(frozen=True)
class Page(Generic[T]):
    """Newest first; `total` counts all matches, not only those on this page."""

    items: tuple[T, ...]
    total: int
    page: int
    page_size: int

    @property
    def total_pages(self) -> int:
        """Zero when nothing matched."""
        return -(-self.total // self.page_size)

    @property
    def has_next(self) -> bool:
        """Whether a later page holds anything."""
        return self.page < self.total_pages


@dataclass(frozen=True)
class Record:
    """A sandbox as stored, and the version that a change of it must name."""

    sandbox: Sandbox
    version: int


@dataclass(frozen=True)
class Claim:
    """An idempotency key: which request used it first and what came of it."""

    key: str
    request_hash: str
    sandbox_id: str


@dataclass(frozen=True)
class Tombstone:
    """What is still known of a deleted sandbox, for operators; no API call shows it."""

    sandbox_id: str
    deleted_at: datetime
    reason: str
    exit: Exit | None = None
