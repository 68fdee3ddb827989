# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Drafts, filters and ports from what was sent."""

from __future__ import annotations

import pytest

from casulo.api import parse
from casulo.api.wire import CreateSandboxRequest
from casulo.model.draft import Draft
from casulo.model.errors import Code, InvalidRequest
from casulo.model.sandbox import Platform
from casulo.model.states import State


def test_a_whole_draft() -> None:
    request = CreateSandboxRequest.model_validate(
        {
            "image": {"uri": "host"},
            "entrypoint": ["sleep", "1"],
            "resourceLimits": {"cpu": "1"},
            "resourceRequests": {"cpu": "500m"},
            "env": {"A": "1", "GONE": None, "EMPTY": ""},
            "metadata": {"team": "red"},
            "extensions": {"opensandbox.extensions.x": "y"},
            "platform": {"os": "linux", "arch": "amd64"},
            "timeout": 60,
        }
    )
    assert parse.draft_of(request) == Draft(
        image="host",
        entrypoint=("sleep", "1"),
        resource_limits={"cpu": "1"},
        env={"A": "1", "EMPTY": ""},
        metadata={"team": "red"},
        extensions={"opensandbox.extensions.x": "y"},
        platform=Platform("linux", "amd64"),
        timeout_seconds=60,
    )


def test_an_absent_entrypoint_is_left_to_the_image() -> None:
    request = CreateSandboxRequest.model_validate({"image": {"uri": "host"}, "resourceLimits": {}})
    assert parse.draft_of(request) == Draft(image="host")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a%20b=c%26d%3D%25&e=f", {"a b": "c&d=%", "e": "f"}),
        ("a=", {"a": ""}),
        ("a=b&a=b", {"a": "b"}),
        ("caf%C3%A9=1", {"caf\u00e9": "1"}),
    ],
)
def test_metadata_filters(text: str, pairs: dict[str, str]) -> None:
    assert parse.metadata_filter([text]) == pairs


@pytest.mark.parametrize("text", ["a", "a=b&c", "a=b&&c=d", "%zz=1", "a=%", "a=%ff", "a=b&a=c"])
def test_broken_metadata_filters(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse.metadata_filter([text])
    assert caught.value.code == Code.INVALID_METADATA_FORMAT


def test_states() -> None:
    assert parse.states_of([]) == frozenset()
    assert parse.states_of(["RUNNING", "paused", "Unknown"]) == {State.RUNNING, State.PAUSED}
    assert parse.states_of(["Allocated"]) is None


def test_ports() -> None:
    assert [parse.port_of(text) for text in ("1", "44772", "65535")] == [1, 44772, 65535]
    for text in ("0", "65536", "-1", "1.0", "\u0661", "", "999999999999"):
        with pytest.raises(InvalidRequest):
            parse.port_of(text)
