# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb` as a process of its own, against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from casulo.cli.main import app
from support.server import Server

OURS = ("OPEN_SANDBOX", "OPENSANDBOX", "CASULO")


@dataclass
class Osb:
    """Runs `osb` with an environment of its own; HOME is empty."""

    environment: dict[str, str]
    extra: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run it to the end; within this process when nothing is piped in, which is much quicker."""
        environment = self.environment | self.extra
        if stdin is not None:
            command = self.command(*words)
            return subprocess.run(command, env=environment, capture_output=True, timeout=60, input=stdin)
        cleared: dict[str, str | None] = {name: None for name in os.environ if name.startswith(OURS)}
        done = CliRunner().invoke(app, words, prog_name="osb", env=cleared | environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout_bytes, done.stderr_bytes)

    def text(self, *words: str) -> str:
        """Its stdout, when it ended well."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start it; the caller ends it."""
        return subprocess.Popen(
            self.command(*words),
            env=self.environment | self.extra,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "casulo.cli", *words]


@pytest.fixture
def lone_osb(tmp_path: Path) -> Osb:
    """`osb` on a machine where nothing is configured and nothing runs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    return Osb({**kept, "HOME": str(tmp_path), "CASULO_HOME": str(tmp_path / "casulo"), "NO_COLOR": "1"})


@pytest.fixture
def osb(lone_osb: Osb, fake_server: Server) -> Osb:
    """`osb` beside a running server, which it finds by itself."""
    lone_osb.extra["CASULO_HOME"] = str(fake_server.data_dir)
    return lone_osb


@pytest.fixture
def box(osb: Osb) -> Iterator[str]:
    """The id of a sandbox made by `osb`."""
    sandbox_id = osb.text("sandbox", "create", "-t", "5m").strip()
    yield sandbox_id
    osb.run("sandbox", "kill", sandbox_id)
