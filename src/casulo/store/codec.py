# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Between domain objects and table rows.

Members that a newer server wrote are ignored when read, and members that an older one did not know
get their defaults, so that servers one release apart can read each other's rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import RowMapping

from casulo.model.sandbox import Exit, Handle, Sandbox, Spec
from casulo.model.snapshot import Snapshot, SnapshotState, SnapshotStatus
from casulo.model.states import State, Status
from casulo.store.query import Record

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """An aware datetime as the tables hold it."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """The reverse of `to_micros`."""
    return _EPOCH + timedelta(microseconds=value)


def to_row(sandbox: Sandbox) -> dict[str, Any]:
    """All columns but `version`."""
    resources = sandbox.spec.resources
    return {
        **to_changing_row(sandbox),
        "spec": dump(Spec, sandbox.spec),
        "cpu_millis": resources.cpu_millis,
        "memory_bytes": resources.memory_bytes,
        "disk_bytes": resources.disk_bytes or 0,
    }


def to_changing_row(sandbox: Sandbox) -> dict[str, Any]:
    """The columns that do not come from the spec, which is the largest part and seldom changes."""
    expires = sandbox.expires_at
    return {
        "id": sandbox.id,
        "state": sandbox.status.state.value,
        "reason": sandbox.status.reason,
        "message": sandbox.status.message,
        "since": to_micros(sandbox.status.since),
        "created_at": to_micros(sandbox.created_at),
        "expires_at": None if expires is None else to_micros(expires),
        "runtime": sandbox.runtime,
        "metadata": dict(sandbox.metadata),
        "handle": dump(Handle, sandbox.handle),
        "exit": dump(Exit, sandbox.exit),
        "owner": sandbox.owner,
        "server": sandbox.server,
    }


def from_row(row: RowMapping) -> Record:
    """The record that `to_row` and a version became."""
    expires = row["expires_at"]
    sandbox = Sandbox(
        id=row["id"],
        spec=_adapters[Spec].validate_python(row["spec"]),
        status=Status(State(row["state"]), row["reason"], row["message"], from_micros(row["since"])),
        created_at=from_micros(row["created_at"]),
        metadata=row["metadata"],
        expires_at=None if expires is None else from_micros(expires),
        runtime=row["runtime"],
        handle=load(Handle, row["handle"]),
        exit=load(Exit, row["exit"]),
        owner=row["owner"],
        server=row["server"],
    )
    return Record(sandbox, row["version"])


def to_snapshot_row(snapshot: Snapshot) -> dict[str, Any]:
    """All columns."""
    return {
        "id": snapshot.id,
        "sandbox_id": snapshot.sandbox_id,
        "name": snapshot.name,
        "state": snapshot.status.state.value,
        "reason": snapshot.status.reason,
        "message": snapshot.status.message,
        "since": to_micros(snapshot.status.since),
        "created_at": to_micros(snapshot.created_at),
        "runtime": snapshot.runtime,
        "spec": dump(Spec, snapshot.spec),
        "owner": snapshot.owner,
        "server": snapshot.server,
    }


def from_snapshot_row(row: RowMapping) -> Snapshot:
    """The snapshot that `to_snapshot_row` was given."""
    state = SnapshotState(row["state"])
    return Snapshot(
        id=row["id"],
        sandbox_id=row["sandbox_id"],
        spec=_adapters[Spec].validate_python(row["spec"]),
        runtime=row["runtime"],
        status=SnapshotStatus(state, row["reason"], row["message"], from_micros(row["since"])),
        created_at=from_micros(row["created_at"]),
        name=row["name"],
        owner=row["owner"],
        server=row["server"],
    )


def dump(kind: type[T], value: T | None) -> Any:
    """Plain JSON data of a domain value, None for None."""
    return None if value is None else _adapters[kind].dump_python(value, mode="json")


def load(kind: type[T], data: Any) -> T | None:
    """The domain value of plain JSON data, None for None."""
    if data is None:
        return None
    value: T = _adapters[kind].validate_python(data)
    return value


class _Adapters(dict[type, TypeAdapter[Any]]):
    """Built at the first use, since building one costs milliseconds."""

    def __missing__(self, kind: type) -> TypeAdapter[Any]:
        self[kind] = TypeAdapter(kind)
        return self[kind]


_adapters = _Adapters()
