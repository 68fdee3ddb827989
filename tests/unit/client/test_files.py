# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Modes and ranges: how Python writes them and how the wire does."""

from __future__ import annotations

import pytest

from casulo.client.files import _range, octal
from casulo.client.records import FileInfo
from casulo.model.errors import InvalidRequest


@pytest.mark.parametrize(
    ("mode", "wire"),
    [
        (0o644, 644),
        ("644", 644),
        ("0644", 644),
        ("0o755", 755),
        (0o1777, 1777),
        (0o4755, 4755),
        (0, 0),
        ("000", 0),
    ],
)
def test_modes_on_the_wire(mode: int | str, wire: int) -> None:
    assert octal(mode) == wire


@pytest.mark.parametrize("mode", [644, 755, 600, 777])
def test_decimal_numbers_that_were_meant_octal_are_caught(mode: int) -> None:
    with pytest.raises(InvalidRequest, match="decimal") as caught:
        octal(mode)
    assert f"0o{mode}" in caught.value.hint


@pytest.mark.parametrize("mode", ["u+x", "999", "12345", 0o17777, -1])
def test_what_is_no_mode_is_refused(mode: int | str) -> None:
    with pytest.raises(InvalidRequest):
        octal(mode)


def test_modes_from_the_wire() -> None:
    moment = "2026-01-02T03:04:05.123456789Z"
    info = FileInfo.read(
        {"path": "/a", "size": 1, "mode": 1755, "owner": "o", "group": "g"}
        | {"modified_at": moment, "created_at": moment}
    )
    assert (info.mode, info.type, info.modified_at.microsecond) == (0o1755, "file", 123456)


@pytest.mark.parametrize(
    ("start", "end", "header"),
    [
        (0, None, None),
        (5, None, "bytes=5-"),
        (0, 10, "bytes=0-9"),
        (3, 4, "bytes=3-3"),
        (-7, None, "bytes=-7"),
        (4, 4, None),
    ],
)
def test_ranges(start: int, end: int | None, header: str | None) -> None:
    assert _range(start, end) == header
