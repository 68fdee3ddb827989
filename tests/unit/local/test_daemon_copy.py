# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The daemon that sandboxes get does not change while a server runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from casulo.images import daemon


def test_a_replaced_binary_does_not_change_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "bin"
    installed.mkdir()
    binary = installed / "execd-linux-amd64"
    binary.write_bytes(b"one")
    monkeypatch.setattr(daemon, "_FOLDER", installed)
    first = daemon.install(tmp_path / "store", "amd64")
    binary.unlink()
    binary.write_bytes(b"two")
    assert first.read_bytes() == b"one"
    assert first.stat().st_mode & 0o777 == 0o755
    second = daemon.install(tmp_path / "store", "amd64")
    assert second.read_bytes() == b"two"
    assert [path.name for path in (tmp_path / "store").iterdir()] == [second.name]
