# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The test side of the process that runs scenarios with the official clients."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import pytest

from support.server import Server


@dataclass(frozen=True)
class Official:
    """The environment with the official packages; `run` executes one scenario in it."""

    runner: subprocess.Popen[str]

    def run(self, name: str, server: Server, *, proxy: bool, **more: str) -> None:
        """Raises AssertionError with the scenario's own traceback when it fails."""
        request = {"name": name, "domain": server.domain, "api_key": server.api_key, "proxy": proxy, **more}
        assert self.runner.stdin is not None and self.runner.stdout is not None
        self.runner.stdin.write(json.dumps(request) + "\n")
        self.runner.stdin.flush()
        answer = self.runner.stdout.readline()
        assert answer, "the scenario runner died"
        problem = json.loads(answer)["problem"]
        if problem:
            pytest.fail(f"{name} failed in the official client:\n{problem}", pytrace=False)
