# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official code interpreter on the image of `images/code-interpreter`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from support import code_image
from support.official import Official
from support.server import Server

pytestmark = pytest.mark.timeout(1800)  # the first one may have to build the image
SCENARIOS = Path(__file__).with_name("scenarios")


def code_scenarios() -> list[str]:
    return [
        f"{module}.{node.name}"
        for module in ("code", "code_sync")
        for node in ast.parse((SCENARIOS / f"{module}.py").read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]


@pytest.fixture(scope="module")
def image_server(new_module_server: Callable[..., Server]) -> Server:
    return new_module_server("local", f'[images]\nfolder = "{code_image.store()}"\n')


@pytest.mark.parametrize("name", code_scenarios())
def test_official_on_the_image(name: str, image_server: Server, official: Official) -> None:
    official.run(name, image_server, proxy=False, image=code_image.NAME)
