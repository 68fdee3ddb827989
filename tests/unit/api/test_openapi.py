# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The stored OpenAPI document is the one that the code describes."""

from __future__ import annotations

import json
from pathlib import Path

from casulo.api import export, openapi

STORED = Path(__file__).parents[3] / "spec" / "openapi.json"


def test_stored_document_is_current() -> None:
    assert STORED.read_text(encoding="utf-8") == export.document(), "run `python -m casulo.api.export`"


def test_export_writes_the_document(tmp_path: Path) -> None:
    export.main([str(tmp_path / "new" / "api.json")])
    assert json.loads((tmp_path / "new" / "api.json").read_text()) == openapi.schema()


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        operation["operationId"] for path in openapi.schema()["paths"].values() for operation in path.values()
    ]
    assert len(names) == len(set(names)) >= 30
