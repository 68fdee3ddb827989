# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`./dev bench NAME [--json] [--save]`, `./dev bench NAME --vs REV`, `./dev bench --render`.

With --json standard output holds one JSON object and nothing else; --save keeps it in benchmarks/results,
of which --render makes a page and pictures; --vs measures another revision before this one.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys

from benchmarks import results, versus

NAMES = (
    "create", "exec", "delete", "idle", "list", "leak",
    "stream", "transfer", "parallel", "session",
    "unpack", "code", "interpreter", "snapshot",
    "microvm", "pool", "soak", "burst", "churn", "density", "engines", "egress", "vault",
)  # fmt: skip


USAGE = f"usage: ./dev bench NAME [--json] [--save] | NAME --vs REV | --render\nnames: {' '.join(NAMES)}"


def main(arguments: list[str]) -> int:
    options = {word for word in arguments if word.startswith("-")}
    names = [word for word in arguments if not word.startswith("-")]
    if arguments == ["--render"]:
        print("\n".join(map(str, results.render())))
        return 0
    if options <= {"--json", "--vs"} and "--vs" in options and len(names) == 2 and names[0] in NAMES:
        found = versus.compare(*names)
        print(json.dumps(found) if "--json" in options else versus.table(found))
        return 0
    if len(names) != 1 or names[0] not in NAMES or options - {"--json", "--save"}:
        print(USAGE, file=sys.stderr)
        return 2
    return _one(names[0], options)


def _one(name: str, options: set[str]) -> int:
    module = importlib.import_module(f"benchmarks.bench_{name}")
    report = asyncio.run(module.measure())
    if "--save" in options:
        print(f"kept in {results.save(report)}", file=sys.stderr)
    print(report.as_json() if "--json" in options else report.as_table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
