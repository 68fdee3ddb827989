# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Lock files pin names and versions only: where packages come from is the machine's own business."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINNED = re.compile(r"""[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+(; python_version [<>=]+ "[0-9.]+")?""")


def main() -> int:
    faults = [fault for path in sorted((ROOT / "requirements").glob("*.txt")) for fault in check(path)]
    print("\n".join(faults))
    return 1 if faults else 0


def check(path: Path) -> Iterator[str]:
    """A fault is anything but `name==version`, which may be for some Pythons only."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content and not PINNED.fullmatch(content):
            yield f"{path}:{number}: {content!r} is not of the form name==version"


if __name__ == "__main__":
    sys.exit(main())
