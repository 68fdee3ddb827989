# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is known of buckets without mounting one."""

from __future__ import annotations

from pathlib import Path

import pytest

from casulo.model.errors import Code, RuntimeFailure
from casulo.model.volume import Bucket, Volume
from casulo.runtimes.local.buckets import Buckets


@pytest.fixture
def buckets(tmp_path: Path) -> Buckets:
    made = Buckets()
    made.open(tmp_path / "buckets", 0, rootless=False)
    return made


def test_a_bucket_that_came_from_the_store_has_no_key(buckets: Buckets) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        buckets.mount("id", [Volume("v", "/v", Bucket("abc", "oss.example.com"))])
    assert caught.value.code == Code.VOLUME_BUCKET_MOUNT_FAILED
    assert "kept nowhere" in caught.value.message
    assert buckets.traces() == set()


def test_leftovers_are_found_and_removed(buckets: Buckets, tmp_path: Path) -> None:
    """However far a mount got that was cut off, and though nothing else is left of its sandbox."""
    (tmp_path / "buckets" / "begun").mkdir(parents=True)
    (tmp_path / "buckets" / "made" / "v" / "mount").mkdir(parents=True)
    (tmp_path / "buckets" / "made" / "v" / "key").write_text("abc:id:secret")
    assert buckets.traces() == {"begun", "made"}
    for sandbox_id in ("begun", "made", "unknown"):
        buckets.release(sandbox_id)
    assert buckets.traces() == set()


def test_what_is_in_a_mount_point_is_never_deleted(buckets: Buckets, tmp_path: Path) -> None:
    inside = tmp_path / "buckets" / "made" / "v" / "mount" / "file"
    inside.parent.mkdir(parents=True)
    inside.touch()
    with pytest.raises(OSError, match="not empty"):
        buckets.release("made")
    assert inside.exists()
    assert buckets.traces() == {"made"}


def test_without_root_there_are_none(tmp_path: Path) -> None:
    made = Buckets()
    made.open(tmp_path, 1000, rootless=True)
    assert "root" in made.missing
