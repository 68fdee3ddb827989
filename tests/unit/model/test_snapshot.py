# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a restore takes from its snapshot, where processes go on in the kernel that they were in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from casulo.model.draft import HOST_IMAGE, Draft
from casulo.model.errors import Code, Conflict
from casulo.model.memory import SNAPSHOT_MEMORY
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Resources, Spec
from casulo.model.snapshot import Snapshot, SnapshotReason, SnapshotState, SnapshotStatus, restored
from casulo.model.volume import Claim, Volume

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = SnapshotStatus(SnapshotState.READY, SnapshotReason.READY, "", NOW)


def snapshot(memory: str = "true") -> Snapshot:
    spec = Spec(
        HOST_IMAGE,
        ("sleep", "9"),
        Resources(1000, 64 << 20, 20, 1 << 20),
        resource_limits={"pids": "20"},
        extensions={SNAPSHOT_MEMORY: memory},
    )
    return Snapshot("s", "source", spec, "local", READY, NOW)


VOLUME = Volume("v", "/data", Claim("data"))


@pytest.mark.parametrize(
    "change",
    [
        {"entrypoint": ("sleep", "10")},
        {"volumes": (VOLUME,)},
        {"resource_limits": {"pids": "30"}},
        {"resource_limits": {"shm": "16Mi"}},
    ],
)
def test_what_running_processes_have_cannot_be_changed(change: dict[str, Any]) -> None:
    with pytest.raises(Conflict) as refused:
        restored(Draft("", **change), snapshot())
    assert refused.value.code == Code.SNAPSHOT_INVALID_RESTORE_CONFIG
    assert "leave" in refused.value.hint and "Volume(" not in refused.value.message
    restored(Draft("", **change), snapshot("false"))


@pytest.mark.parametrize("entrypoint", [None, DEFAULT_ENTRYPOINT, ("sleep", "9")])
def test_limits_of_the_kernel_go_on_and_those_of_the_host_are_the_requests(entrypoint: Any) -> None:
    asked = {"memory": "1Gi", "pids": "20"}
    for limits in ({"memory": "1Gi"}, asked):
        assert restored(Draft("", entrypoint, limits), snapshot()).resource_limits == asked
