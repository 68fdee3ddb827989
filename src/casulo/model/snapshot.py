# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a snapshot is, the one table of its legal transitions, and what a restore takes from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from casulo.model.draft import ISOLATION, RUNTIME, Draft, isolation_of
from casulo.model.errors import Code, Conflict, NotFound
from casulo.model.memory import with_memory
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Isolation, Platform, Spec

T = TypeVar("T")
_MOST_ANCESTORS = 64


class SnapshotState(StrEnum):
    """Life-cycle state of a snapshot, spelled as on the wire."""

    CREATING = "Creating"
    READY = "Ready"
    FAILED = "Failed"
    DELETING = "Deleting"


class SnapshotReason:
    """The reasons that a snapshot's status may carry."""

    ACCEPTED = "snapshot_accepted"
    READY = "snapshot_runtime_ready"
    FAILED = "snapshot_runtime_failed"
    TIMED_OUT = "snapshot_runtime_timeout"
    DELETE_REQUESTED = "snapshot_delete_requested"
    INTERRUPTED = "snapshot_recovery_interrupted"
    LOST = "snapshot_recovery_lost"


_S = SnapshotState
TRANSITIONS: dict[SnapshotState, frozenset[SnapshotState]] = {
    _S.CREATING: frozenset({_S.READY, _S.FAILED}),
    _S.READY: frozenset({_S.DELETING, _S.FAILED}),
    _S.FAILED: frozenset({_S.DELETING}),
    _S.DELETING: frozenset(),
}
"""From a state to those that may follow it. A snapshot that left DELETING no longer exists."""


@dataclass(frozen=True)
class SnapshotStatus:
    """State plus why: `reason` is a stable word, `message` a sentence for people."""

    state: SnapshotState
    reason: str
    message: str
    since: datetime


@dataclass(frozen=True)
class Snapshot:
    """One row of the store. `spec` and `runtime` are those of the sandbox that it was taken of."""

    id: str
    sandbox_id: str
    spec: Spec
    runtime: str
    status: SnapshotStatus
    created_at: datetime
    name: str = ""
    owner: str = ""
    server: str = ""
    """As with sandboxes."""


@dataclass(frozen=True)
class Change:
    """One path that two snapshots show differently: `added`, `removed` or `changed`."""

    path: str
    kind: str


def moved(
    snapshot: Snapshot, wanted: SnapshotState, reason: str, now: datetime, message: str = ""
) -> Snapshot:
    """`snapshot` in the state `wanted`; Conflict when the table has no such step."""
    current = snapshot.status.state
    if wanted not in TRANSITIONS[current]:
        raise Conflict(
            f"snapshot {snapshot.id} is {current}, which {wanted} cannot follow",
            code=Code.SNAPSHOT_INVALID_STATE,
            hint="read its state with `osb snapshot get` and try again when it is Ready or Failed",
        )
    return replace(snapshot, status=SnapshotStatus(wanted, reason, message, now))


def snapshot_not_found(snapshot_id: str) -> NotFound:
    """The one answer for unknown and deleted snapshots."""
    return NotFound(
        f"no snapshot with id {snapshot_id!r}",
        code=Code.SNAPSHOT_NOT_FOUND,
        hint="it may have been deleted; list those that are there with `osb snapshot ls`",
    )


def restored(draft: Draft, snapshot: Snapshot) -> Draft:
    """The request for a sandbox with the snapshot's files, completed by what it was taken of.

    Files fit the image below them, the runtime that keeps them, and what its source was asked to be:
    a request may repeat these and not change them. So it is with the processes, if they are kept. The network
    policy goes on unless the request brings another, and so does the credential vault. Everything else is the
    request's own.
    """
    require_ready(snapshot)
    source = snapshot.spec
    wanted = isolation_of(draft)
    isolation = _kept(snapshot, "isolation", _chosen(wanted), _chosen(source.isolation)) or Isolation.AUTO
    _kept(snapshot, "runtime", draft.extensions.get(RUNTIME), snapshot.runtime)
    platform = _kept(snapshot, "platform", _lowered(draft.platform), source.platform)
    told = {ISOLATION: isolation.value} if ISOLATION in draft.extensions else {}
    limits = _running_on(draft, snapshot) if with_memory(source.extensions) else draft.resource_limits
    return replace(
        draft,
        image=source.image,
        entrypoint=draft.entrypoint or DEFAULT_ENTRYPOINT,
        platform=platform,
        isolation=isolation,
        resource_limits=limits,
        lineage=(snapshot.sandbox_id, *source.lineage)[:_MOST_ANCESTORS],
        extensions={**draft.extensions, **told},
        network_policy=source.network_policy if draft.network_policy is None else draft.network_policy,
        credential_proxy=draft.credential_proxy or source.credential_proxy,
    )


def _running_on(draft: Draft, snapshot: Snapshot) -> Mapping[str, str]:
    """The limits for processes that go on in the kernel that they were in, which has its mounts and limits.

    An entrypoint that only waits is what some clients send when they are told of none.
    """
    source = snapshot.spec
    if draft.entrypoint not in (None, DEFAULT_ENTRYPOINT):
        _kept(snapshot, "entrypoint", shlex.join(draft.entrypoint), shlex.join(source.entrypoint))
    if draft.volumes:
        _kept(snapshot, "volumes", f"{len(draft.volumes)}", "none")
    inside = {
        name: _kept(
            snapshot, name, draft.resource_limits.get(name), source.resource_limits.get(name, "the default")
        )
        for name in ("pids", "shm")
    }
    given = {name: text for name, text in inside.items() if text and name in source.resource_limits}
    return {**draft.resource_limits, **given}


def _kept(snapshot: Snapshot, what: str, asked: T | None, source: T | None) -> T | None:
    """The source's choice; where it made none, the request's."""
    if asked is not None and source is not None and asked != source:
        raise Conflict(
            f"{what}: a sandbox of snapshot {snapshot.id} has {_said(source)}, not {_said(asked)}",
            code=Code.SNAPSHOT_INVALID_RESTORE_CONFIG,
            hint=f"leave the {what} out: it comes from the snapshot",
        )
    return asked if source is None else source


def _said(choice: object) -> str:
    return f"{choice.os}/{choice.arch}" if isinstance(choice, Platform) else str(choice)


def _chosen(isolation: Isolation) -> Isolation | None:
    return None if isolation is Isolation.AUTO else isolation


def _lowered(platform: Platform | None) -> Platform | None:
    return Platform(platform.os.lower(), platform.arch.lower()) if platform else None


def require_ready(snapshot: Snapshot) -> None:
    """Conflict unless its files are there."""
    status = snapshot.status
    if status.state is not SnapshotState.READY:
        raise Conflict(
            f"snapshot {snapshot.id} is {status.state}: {status.message or status.reason}",
            code=Code.SNAPSHOT_NOT_READY,
            hint="wait until `osb snapshot get` shows it Ready"
            if status.state is SnapshotState.CREATING
            else "take another one",
        )
