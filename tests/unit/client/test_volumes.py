# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes as a user of the client writes them, and what goes over the wire."""

from __future__ import annotations

import pytest

from casulo.api import wire_volumes
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


KEY = {"OSS_ACCESS_KEY_ID": "id", "OSS_ACCESS_KEY_SECRET": "hidden"}


def test_bucket_in_the_short_form_takes_its_key_from_the_environment() -> None:
    made = Volume.parse("bucket://data@oss.example.com:8443:/mnt:ro", KEY)
    asked = {"bucket": "data", "endpoint": "oss.example.com:8443", "accessKeyId": "id", "version": "1.0"}
    wire = made.wire(0)
    assert wire["ossfs"] == {**asked, "accessKeySecret": "hidden"} and wire["readOnly"]
    assert "hidden" not in repr(made)
    with pytest.raises(ValueError, match="OSS_ACCESS_KEY_SECRET is not set"):
        Volume.parse("bucket://data@oss.example.com:/mnt", {"OSS_ACCESS_KEY_ID": "id"})


def test_bucket_with_options_is_what_the_server_takes() -> None:
    made = Volume.bucket(
        "data", "oss.example.com", "/mnt", key_id="i", key_secret="s", options=["retries=3"], sub_path="a"
    )
    asked = wire_volumes.volumes_of([wire_volumes.VolumeSpec.model_validate(made.wire(0))])
    assert asked[0].mount_path == "/mnt"
