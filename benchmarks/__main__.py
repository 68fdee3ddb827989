# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`./dev bench NAME [--json]`: with --json standard output holds one JSON object and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import sys

NAMES = (
    "create", "exec", "delete", "idle", "list", "leak",
    "stream", "transfer", "parallel", "session",
    "unpack", "code", "interpreter", "snapshot",
    "microvm", "pool", "soak", "burst", "churn", "density", "engines", "egress", "vault",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    names = [word for word in arguments if not word.startswith("-")]
    if len(names) != 1 or names[0] not in NAMES or set(arguments) - set(names) - {"--json"}:
        print(f"usage: ./dev bench NAME [--json]\nnames: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.bench_{names[0]}")
    report = asyncio.run(module.measure())
    print(report.as_json() if "--json" in arguments else report.as_table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
