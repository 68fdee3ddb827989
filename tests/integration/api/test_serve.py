# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server as a process: what it claims, says, keeps and leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from casulo.api import instance, listen
from casulo.api.serve import run
from casulo.model.errors import Code, Conflict, InvalidRequest
from casulo.settings import Settings

PROGRAM = """
import json, os, sys
from casulo.api.serve import run
from casulo.settings import Settings
run(Settings.parse(json.loads(sys.argv[1]), {}, source="test"))
"""
Start = Callable[..., subprocess.Popen[str]]


def _tables(data_dir: Path, **server: Any) -> dict[str, Any]:
    return {"server": {"port": 0, "data_dir": str(data_dir), **server}, "runtime": {"enabled": ["fake"]}}


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server process and waits until it says that it listens."""
    started: list[subprocess.Popen[str]] = []

    def begin(data_dir: Path, **server: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, json.dumps(_tables(data_dir, **server))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        assert process.stdout is not None
        process.said = process.stdout.readline()  # type: ignore[attr-defined]
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _client(data_dir: Path) -> httpx.Client:
    url = json.loads((data_dir / "server.json").read_text())["url"]
    key = (data_dir / "api-key").read_text().strip()
    return httpx.Client(base_url=url, headers={"OPEN-SANDBOX-API-KEY": key}, trust_env=False, timeout=10)


def test_what_it_says_and_leaves(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "home"
    process = start(data)
    note = json.loads((data / "server.json").read_text())
    assert process.said == f"casulo 0.1.0 listening on {note['url']}\n"  # type: ignore[attr-defined]
    assert (note["pid"], note["version"]) == (process.pid, "0.1.0")
    assert (data / "api-key").stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
    with _client(data) as client:
        assert client.get("/v1/sandboxes").status_code == 200
        assert httpx.get(f"{note['url']}/v1/sandboxes", trust_env=False).status_code == 401
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not (data / "server.json").exists() and (data / "api-key").exists()


def test_sandboxes_outlive_it(start: Start, tmp_path: Path) -> None:
    body = {"image": {"uri": "host"}, "entrypoint": ["sleep", "600"], "resourceLimits": {}}
    first = start(tmp_path)
    key = (tmp_path / "api-key").read_text()
    with _client(tmp_path) as client:
        created = client.post("/v1/sandboxes", json=body).json()
    first.send_signal(signal.SIGINT)
    assert first.wait(10) == 0
    daemon = f"http://{created['casulo']['endpoint']}"
    assert httpx.get(f"{daemon}/ping", trust_env=False).status_code == 200
    start(tmp_path)
    assert (tmp_path / "api-key").read_text() == key
    with _client(tmp_path) as client:
        found = client.get(f"/v1/sandboxes/{created['id']}").json()
        assert found["status"]["state"] == "Running"
        assert client.get(f"/v1/sandboxes/{created['id']}/proxy/44772/ping").status_code == 200
        assert client.delete(f"/v1/sandboxes/{created['id']}").status_code == 204


def test_it_stops_although_a_caller_still_reads(start: Start, tmp_path: Path) -> None:
    body = {"image": {"uri": "host"}, "entrypoint": ["sleep", "600"], "resourceLimits": {}, "timeout": 60}
    process = start(tmp_path)
    with _client(tmp_path) as client:
        created = client.post("/v1/sandboxes", json=body).json()
        path = f"/v1/sandboxes/{created['id']}/proxy/44772/command"
        command = {"command": "echo begun; sleep 30"}
        with client.stream("POST", path, json=command, headers=created["casulo"]["headers"]) as stream:
            next(stream.iter_raw())
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
    assert time.monotonic() - begun < 8
    start(tmp_path)
    with _client(tmp_path) as client:
        client.delete(f"/v1/sandboxes/{created['id']}")


def test_one_server_per_directory(start: Start, tmp_path: Path) -> None:
    process = start(tmp_path)
    with pytest.raises(Conflict) as caught:
        run(Settings.parse(_tables(tmp_path), {}, source="test"))
    assert caught.value.code == Code.SERVER_ALREADY_RUNNING
    assert f"process {process.pid}" in caught.value.message
    process.kill()
    process.wait()
    with instance.claimed(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_no_key_only_on_this_machine(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "box.example"):
        with pytest.raises(InvalidRequest, match="without an API key"):
            run(Settings.parse(_tables(tmp_path, host=host, insecure=True), {}, source="test"))


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{port}"):
            run(Settings.parse(_tables(tmp_path, port=port), {}, source="test"))


def test_a_data_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="data directory"):
        run(Settings.parse(_tables(tmp_path / "file"), {}, source="test"))


def test_a_given_key_is_not_written_down(start: Start, tmp_path: Path) -> None:
    start(tmp_path, api_key="given")
    assert not (tmp_path / "api-key").exists()
    url = json.loads((tmp_path / "server.json").read_text())["url"]
    answer = httpx.get(f"{url}/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": "given"}, trust_env=False)
    assert answer.status_code == 200


def test_an_emptied_key_file_is_no_key(tmp_path: Path) -> None:
    with instance.claimed(tmp_path) as home:
        assert home.api_key() == home.api_key()
        home.key_file.write_text("\n")
        with pytest.raises(InvalidRequest, match="is empty"):
            home.api_key()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")],
)
def test_addresses(host: str, url: str) -> None:
    with listen.open_socket(host, 0) as listener:
        assert listen.url_of(host, listener) == f"http://{url}:{listener.getsockname()[1]}"
    assert listen.is_loopback(host) == (host != "0.0.0.0")
