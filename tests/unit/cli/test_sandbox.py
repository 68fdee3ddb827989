# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb sandbox`, `osb config` and `osb version`."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Osb


def test_a_life(osb: Osb, tmp_path: Path) -> None:
    made = json.loads(
        osb.text("-o", "json", "sandbox", "create", "-m", "a=1", "-t", "none", "--resource", "memory=64Mi")
    )
    sandbox_id = made["id"]
    assert (made["status"]["state"], made["metadata"], made["expires_at"]) == ("Running", {"a": "1"}, None)
    assert sandbox_id in osb.text("sandbox", "list", "-m", "a=1", "-s", "running")
    assert json.loads(osb.text("sandbox", "get", sandbox_id, "-o", "json"))["image"] == "host"
    endpoint = json.loads(osb.text("sandbox", "endpoint", sandbox_id, "-p", "8000", "-o", "json"))
    assert endpoint["endpoint"].endswith("/8000")
    osb.text("sandbox", "pause", sandbox_id)
    assert osb.run("sandbox", "health", sandbox_id).returncode == 1
    osb.text("sandbox", "resume", sandbox_id)
    assert "healthy" in osb.text("sandbox", "health", sandbox_id)
    assert osb.text("sandbox", "kill", sandbox_id).split()[-1] == "terminated"
    assert osb.run("sandbox", "get", sandbox_id).returncode == 1


def test_renew(osb: Osb, box: str) -> None:
    before = json.loads(osb.text("sandbox", "get", box, "-o", "json"))["expires_at"]
    after = json.loads(osb.text("sandbox", "renew", box, "-t", "1h", "-o", "json"))["expires_at"]
    assert after > before


def test_create_from_a_file_in_wire_form(osb: Osb, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    body = {"image": {"uri": "host"}, "timeout": 120, "resourceLimits": {}, "entrypoint": ["sleep", "100"]}
    request.write_text(json.dumps(body))
    made = json.loads(osb.text("sandbox", "create", "-f", str(request), "-o", "json"))
    assert made["entrypoint"] == ["sleep", "100"]
    assert osb.run("sandbox", "create", "-f", str(request), "-m", "a=1").returncode == 2
    osb.text("sandbox", "kill", made["id"])


def test_config_is_written_shown_and_used(lone_osb: Osb, tmp_path: Path) -> None:
    file = tmp_path / ".opensandbox" / "config.toml"
    lone_osb.text("config", "init")
    assert lone_osb.run("config", "init").returncode == 2
    lone_osb.text("config", "set", "connection.domain", "127.0.0.1:1")
    lone_osb.text("config", "set", "connection.api_key", "secret")
    assert file.stat().st_mode & 0o077 == 0
    shown = lone_osb.text("config", "show")
    assert "http://127.0.0.1:1" in shown
    assert "secret" not in shown
    assert lone_osb.run("config", "set", "connection.nothing", "x").returncode == 2
    assert lone_osb.run("config", "set", "connection.use_server_proxy", "maybe").returncode == 1
    assert b"127.0.0.1:1" in lone_osb.run("sandbox", "list").stderr


def test_versions_of_all_sides(osb: Osb, box: str, lone_osb: Osb) -> None:
    found = json.loads(osb.text("version", box, "-o", "json"))
    assert found["client"] == found["server"] == found["daemon"] == found["sandbox_daemon"]
    assert osb.text("--version").split() == ["osb", found["client"]]
