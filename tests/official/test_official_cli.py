# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official command line, as a user at a terminal would type it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.server import Server


class Cli:
    """Runs `osb` of the official package against one server."""

    def __init__(self, program: Path, server: Server, home: Path, *, proxy: bool) -> None:
        self._options = [str(program), *(["--use-server-proxy"] if proxy else [])]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "OPEN_SANDBOX_DOMAIN": server.domain,
            "OPEN_SANDBOX_API_KEY": server.api_key,
            "OPEN_SANDBOX_PROTOCOL": "http",
        }

    def run(self, *arguments: str, status: int = 0, stdin: str = "") -> str:
        done = subprocess.run(
            [*self._options, *arguments],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        verbs = arguments[:2]
        return json.loads(self.run(*verbs, "-o", "json", *arguments[2:]))


@pytest.fixture(params=["direct", "proxy"])
def cli(request: pytest.FixtureRequest, official_bin: Path, local_server: Server, tmp_path: Path) -> Cli:
    return Cli(official_bin / "osb", local_server, tmp_path, proxy=request.param == "proxy")


@pytest.fixture
def box(cli: Cli) -> Any:
    created = cli.json("sandbox", "create", "--image", "host", "-m", "made=cli", "--timeout", "5m")
    yield created["id"]
    cli.run("sandbox", "kill", created["id"])


def test_sandbox_verbs(cli: Cli, box: str) -> None:
    assert cli.json("sandbox", "get", box)["id"] == box
    listed = cli.json("sandbox", "list", "-m", "made=cli")
    assert box in json.dumps(listed)
    cli.run("sandbox", "renew", box, "--timeout", "20m")
    assert "44772" in cli.run("sandbox", "endpoint", box, "--port", "44772", "-o", "json")
    cli.run("sandbox", "health", box)
    cli.run("sandbox", "metrics", box)
    cli.run("sandbox", "pause", box)
    assert cli.json("sandbox", "get", box)["status"]["state"] == "Paused"
    cli.run("sandbox", "resume", box)
    assert cli.json("sandbox", "get", box)["status"]["state"] == "Running"


def test_commands(cli: Cli, box: str) -> None:
    assert "two words" in cli.run("command", "run", box, "-o", "raw", "--", "echo", "two words")
    assert "$HOME" in cli.run("command", "run", box, "--argv", "-o", "raw", "--", "echo", "$HOME")
    started = cli.json("command", "run", box, "-d", "--", "sh", "-c", "echo up; sleep 60")
    execution = started.get("execution_id") or started["id"]
    cli.run("command", "status", box, execution)
    cli.run("command", "logs", box, execution, "-o", "raw")
    cli.run("command", "interrupt", box, execution)


def test_failed_command_has_a_status(cli: Cli, box: str) -> None:
    told = cli.run("command", "run", box, "-o", "raw", "--", "sh", "-c", "echo before; exit 7", status=1)
    assert "before" in told


def test_files(cli: Cli, box: str, tmp_path: Path) -> None:
    local = tmp_path / "up.bin"
    local.write_bytes(bytes(range(256)) * 400)
    cli.run("file", "upload", box, str(local), "/tmp/f/up.bin")
    cli.run("file", "download", box, "/tmp/f/up.bin", str(tmp_path / "down.bin"))
    assert (tmp_path / "down.bin").read_bytes() == local.read_bytes()
    cli.run("file", "write", box, "/tmp/f/text", "-c", "typed in", "--mode", "0644")
    assert "typed in" in cli.run("file", "cat", box, "/tmp/f/text")
    assert "644" in cli.run("file", "info", box, "/tmp/f/text", "-o", "json")
    cli.run("file", "rm", box, "/tmp/f/text")
    cli.run("file", "mkdir", box, "/tmp/f/sub")
    cli.run("file", "rmdir", box, "/tmp/f")
