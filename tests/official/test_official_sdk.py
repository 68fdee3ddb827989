# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Every scenario, with the official packages, on every runtime, direct and through the proxy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.official import Official
from support.server import Server

SCENARIOS = Path(__file__).with_name("scenarios")


def scenario_names() -> list[str]:
    """Public functions of the scenario modules, found without importing the official packages."""
    return [
        f"{path.stem}.{node.name}"
        for path in sorted(SCENARIOS.glob("*.py"))
        if path.stem
        not in (
            "__init__",
            "context",
            "volumes",
            "egress",
            "vault",
            "pools",
        )  # those need servers of their own
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]


PROXIED = ("fake", "local")
"""The server's proxy does not know what a sandbox runs on; the conformance suite tries it on the others."""

MORE_THAN_THE_SMALL_IMAGE = ("code.", "code_sync.", "isolation.")
"""Scenarios that need compilers, or nested namespaces, which containers of an engine do not get."""


def cases() -> list[tuple[str, str, str]]:
    """(place, channel, scenario), each once."""
    return [
        (place, channel, name)
        for place in ("fake", "local", "runc", "gvisor", "docker")
        for channel in ("direct", "proxy")
        for name in scenario_names()
        if (channel == "direct" or place in PROXIED)
        and not (place == "docker" and name.startswith(MORE_THAN_THE_SMALL_IMAGE))
    ]


@pytest.mark.parametrize(("place", "channel", "name"), cases(), indirect=["place"])
def test_official(name: str, channel: str, server: Server, official: Official) -> None:
    official.run(name, server, proxy=channel == "proxy", image=server.image)
