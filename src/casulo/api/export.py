# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Writes the OpenAPI document of the lifecycle API: `python -m casulo.api.export [FILE]`.

The document is a function of the code alone, so that a difference to the stored file is a change of the API.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from casulo.api.openapi import schema

DEFAULT = Path("spec") / "openapi.json"


def document() -> str:
    """The document as text."""
    return json.dumps(schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    """Write the document to the file that is named, or to its place in the source tree."""
    file = Path(arguments[0]) if arguments else DEFAULT
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
