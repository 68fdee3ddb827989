# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Runs in the official environment: reads scenario names from standard input, one JSON line each.

The answer to each is one JSON line with the traceback, empty when it went well.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback

from scenarios.context import Context


def run(name: str, context: Context) -> str:
    """The problem that scenario `module.function` met, or nothing."""
    module, _, function = name.partition(".")
    scenario = getattr(importlib.import_module(f"scenarios.{module}"), function)
    try:
        if inspect.iscoroutinefunction(scenario):
            asyncio.run(asyncio.wait_for(scenario(context), 150))
        else:
            scenario(context)
    except Exception:
        # The one edge of this program: whatever a scenario raises is its result.
        return traceback.format_exc()
    return ""


def main() -> None:
    # Standard output carries answers only, whatever a library may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("name")
        print(json.dumps({"problem": run(name, Context(**request))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
