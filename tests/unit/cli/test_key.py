# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb key`, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .conftest import Osb


@pytest.fixture
def key(osb: Osb) -> Iterator[str]:
    """The secret of a key; the server is shared, so the key must not outlive its test."""
    yield osb.text("key", "create", "team-a", "--sandboxes", "2", "--memory", "1Gi").strip()
    osb.run("key", "rm", "team-a")


def test_the_life_of_a_key(osb: Osb, key: str) -> None:
    assert key.startswith("casulo_")
    listed = json.loads(osb.text("key", "ls", "-o", "json"))
    assert [(found["name"], found["limits"]["sandboxes"]) for found in listed] == [("team-a", 2)]
    assert "team-a" in osb.text("key", "ls")
    assert osb.run("--api-key", key, "sandbox", "list").returncode == 0
    refused = osb.run("--api-key", key, "key", "ls")
    assert refused.returncode == 1 and b"lacks the scope 'admin'" in refused.stderr
    other = osb.text("key", "rotate", "team-a").strip()
    assert other != key
    assert osb.run("--api-key", key, "sandbox", "list").returncode != 0
    assert "void" in osb.text("key", "rm", "team-a")
    assert osb.run("--api-key", other, "sandbox", "list").returncode != 0
