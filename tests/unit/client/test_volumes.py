# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes as a user of the client writes them, and what goes over the wire."""

from __future__ import annotations

import pytest

from casulo.client import Volume


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("data:/mnt", Volume.named("data", "/mnt")),
        ("data:/mnt:ro", Volume.named("data", "/mnt", read_only=True)),
        ("/srv/in:/in", Volume.host("/srv/in", "/in")),
        ("/srv/a:b:/in:ro", Volume.host("/srv/a:b", "/in", read_only=True)),
        ("/ro:/ro", Volume.host("/ro", "/ro")),
    ],
)
def test_short_form(text: str, volume: Volume) -> None:
    assert Volume.parse(text) == volume


@pytest.mark.parametrize(
    "text", ["", "data", "data:", ":/mnt", "data:mnt", "/srv", "data:ro", "data:/mnt:rw"]
)
def test_what_is_no_short_form(text: str) -> None:
    with pytest.raises(ValueError, match="SOURCE:MOUNT_PATH"):
        Volume.parse(text)


def test_wire_form() -> None:
    assert Volume.host("/srv", "/in", read_only=True, sub_path="a/b").wire(0) == {
        "name": "volume-0",
        "mountPath": "/in",
        "readOnly": True,
        "subPath": "a/b",
        "host": {"path": "/srv"},
    }
    named = Volume.named("c", "/c", create=False, delete_with_sandbox=True).wire(3)
    assert named["pvc"] == {
        "claimName": "c",
        "createIfNotExists": False,
        "deleteOnSandboxTermination": True,
    }
