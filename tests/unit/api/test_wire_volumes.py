# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes from the wire to the domain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from pydantic import ValidationError

from casulo.api import parse
from casulo.api.wire import CreateSandboxRequest
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.volume import Claim, HostPath, KeyedBucket, Volume


def _parsed(*volumes: dict[str, Any]) -> tuple[Volume, ...]:
    body = {"image": {"uri": "host"}, "resourceLimits": {}, "volumes": list(volumes)}
    return parse.draft_of(CreateSandboxRequest.model_validate(body)).volumes


def test_everything_arrives() -> None:
    assert _parsed(
        {"name": "a", "mountPath": "/a", "readOnly": True, "subPath": "x/y", "host": {"path": "/srv"}},
        {
            "name": "b",
            "mountPath": "/b",
            "pvc": {
                "claimName": "c",
                "createIfNotExists": False,
                "deleteOnSandboxTermination": True,
                "storageClass": "fast",
                "storage": "1Gi",
                "accessModes": ["ReadWriteOnce"],
            },
        },
    ) == (
        Volume("a", "/a", HostPath("/srv"), read_only=True, sub_path="x/y"),
        Volume("b", "/b", Claim("c", False, True, "fast", "1Gi", ("ReadWriteOnce",))),
    )


def test_nulls_are_defaults() -> None:
    nothing = dict.fromkeys(
        ["createIfNotExists", "deleteOnSandboxTermination", "storageClass", "storage", "accessModes"]
    )
    sent = {"name": "b", "mountPath": "/b", "pvc": {"claimName": "c", **nothing}}
    nulls: dict[str, Any] = {"readOnly": None, "subPath": None, "host": None, "ossfs": None}
    assert _parsed({**sent, **nulls}) == (Volume("b", "/b", Claim("c")),)


@pytest.mark.parametrize("backends", [{}, {"host": {"path": "/a"}, "pvc": {"claimName": "c"}}])
def test_exactly_one_backend(backends: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parsed({"name": "a", "mountPath": "/a", **backends})
    assert caught.value.code == Code.VOLUME_INVALID_BACKEND


_BUCKET = {"bucket": "abc", "endpoint": "oss.example.com", "accessKeyId": "id", "accessKeySecret": "hush"}


def test_buckets_hold_their_key_out_of_sight() -> None:
    (volume,) = _parsed({"name": "a", "mountPath": "/a", "ossfs": {**_BUCKET, "options": ["retries=3"]}})
    assert isinstance(volume.source, KeyedBucket)
    assert volume.source.key.reveal() == "id:hush"
    assert "hush" not in repr(volume) and "hush" not in str(asdict(volume))


def test_ossfs_2_is_refused_without_repeating_its_secrets() -> None:
    with pytest.raises(Unsupported) as caught:
        _parsed({"name": "a", "mountPath": "/a", "ossfs": {**_BUCKET, "version": "2.0"}})
    assert caught.value.code == Code.VOLUME_UNSUPPORTED
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"readonly": True}, {"host": {"path": "/a", "type": "File"}}, {"mountPath": None}, {"name": 5}]
)
def test_misspelled_members_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _parsed({"name": "a", "mountPath": "/a", "host": {"path": "/a"}, **wrong})
