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
        if path.stem not in ("__init__", "context", "volumes")  # those need a server of their own
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("channel", ["direct", "proxy"])
@pytest.mark.parametrize("name", scenario_names())
def test_official(name: str, channel: str, server: Server, official: Official) -> None:
    official.run(name, server, proxy=channel == "proxy")
