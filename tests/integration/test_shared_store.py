# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Two servers over one PostgreSQL: each acts on its own machine's sandboxes, either answers for both."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from support.postgres import Postgres
from support.server import Server

LEASE = 3.0
BODY = {"image": {"uri": "host"}, "entrypoint": ["sleep", "1000"], "resourceLimits": {}, "timeout": 600}


def config(url: str) -> str:
    return f"[store]\nurl = {json.dumps(url)}\nlease_seconds = {LEASE}\n"


def make(place: Path, url: str) -> Server:
    server = Server(place, "fake", config(url))
    server.environment["OPENSANDBOX_SERVER_API_KEY"] = "shared-key"
    place.mkdir(parents=True, exist_ok=True)
    (place / "api-key").write_text("shared-key")  # where this helper looks; the server does not
    return server


@pytest.fixture(scope="module")
def url(database_server: Postgres) -> str:
    return database_server.database()


@pytest.fixture(scope="module")
def servers(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    one, two = (make(tmp_path_factory.mktemp("shared") / name, url) for name in ("one", "two"))
    with ThreadPoolExecutor(2) as both:
        list(both.map(Server.start, (one, two)))  # which also upgrades one database twice at once
    yield one, two
    for server in (one, two):
        server.stop()


@pytest.fixture
def pair(servers: tuple[Server, Server]) -> Iterator[tuple[Server, Server]]:
    """Both alive, and knowing each other."""
    for server in servers:
        if server.process is None:
            server.start()
    _until(lambda: all(len(_alive(server)) == 2 for server in servers))
    yield servers
    for server in servers:
        if server.process is None:
            server.start()
    servers[0].delete_all()


def test_either_answers_for_both(pair: tuple[Server, Server]) -> None:
    one, two = pair
    made = one.request("POST", "/v1/sandboxes", json=BODY).json()
    path = f"/v1/sandboxes/{made['id']}"
    assert two.request("GET", path).json()["status"]["state"] == "Running"
    assert [item["id"] for item in two.request("GET", "/v1/sandboxes").json()["items"]] == [made["id"]]
    endpoint = two.request("GET", f"{path}/endpoints/44772?use_server_proxy=true").json()
    assert endpoint["endpoint"].startswith(two.domain), "the caller goes on with the server that it knows"
    ran = httpx.post(
        f"http://{endpoint['endpoint']}/command",
        json={"command": "echo from afar"},
        headers={**endpoint["headers"], "OPEN-SANDBOX-API-KEY": "shared-key"},
        trust_env=False,
        timeout=30,
    )
    assert "from afar" in ran.text and "execution_complete" in ran.text
    assert two.request("POST", f"{path}/pause").status_code == 202
    assert one.request("GET", path).json()["status"]["state"] == "Paused"
    assert two.request("POST", f"{path}/resume").status_code == 202
    assert two.request("PATCH", f"{path}/metadata", json={"a": "b"}).json()["metadata"] == {"a": "b"}
    assert two.request("DELETE", path).status_code == 204
    assert one.request("GET", path).status_code == 404


def test_a_websocket_reaches_the_other_machine(pair: tuple[Server, Server]) -> None:
    one, two = pair
    made = one.request("POST", "/v1/sandboxes", json=BODY).json()
    base = f"/v1/sandboxes/{made['id']}/proxy/44772"
    key = {"OPEN-SANDBOX-API-KEY": "shared-key", **made["casulo"]["headers"]}
    session = two.request("POST", f"{base}/pty", json={}, headers=key).json()["session_id"]
    with connect(f"ws://{two.domain}{base}/pty/{session}/ws", additional_headers=key) as socket:
        assert socket.recv(timeout=20)


def test_keys_and_snapshots(pair: tuple[Server, Server]) -> None:
    one, two = pair
    told = one.request("POST", "/v1/keys", json={"name": "team", "scopes": ["create"], "limits": {}}).json()
    key = {"OPEN-SANDBOX-API-KEY": told["key"]}
    _until(lambda: two.request("GET", "/v1/sandboxes", headers=key).status_code == 200)
    made = one.request("POST", "/v1/sandboxes", json=BODY, headers=key).json()
    path = f"/v1/sandboxes/{made['id']}/snapshots"
    taken = two.request("POST", path, json={}, headers=key).json()["id"]
    state = lambda: two.request("GET", f"/v1/snapshots/{taken}", headers=key).json()["status"]["state"]  # noqa: E731
    _until(lambda: state() == "Ready")
    body = {name: value for name, value in BODY.items() if name != "image"} | {"snapshotId": taken}
    refused = two.request("POST", "/v1/sandboxes", json=body, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (409, "SERVER::ELSEWHERE")
    assert one.request("POST", "/v1/sandboxes", json=body, headers=key).status_code == 202
    assert two.request("DELETE", f"/v1/snapshots/{taken}", headers=key).status_code == 204


def test_a_pool_is_everybodys(pair: tuple[Server, Server]) -> None:
    """Each server keeps members of its own, and what one is told about the pool, all know soon."""
    size = {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 50}
    told = {"name": "p", "template": {"image": {"uri": "host"}}, "capacitySpec": size}
    with ThreadPoolExecutor(2) as both:
        made = list(both.map(lambda server: server.request("POST", "/v1/pools", json=told).status_code, pair))
    assert sorted(made) == [201, 409], "one of two at once, and the other is told"
    ready = lambda server: server.request("GET", "/v1/pools/p").json().get("status", {}).get("available")  # noqa: E731
    _until(lambda: [ready(server) for server in pair] == [2, 2])
    body = {"timeout": 600, "extensions": {"poolRef": "p"}, "entrypoint": ["sleep", "1000"]}
    with ThreadPoolExecutor(8) as many:
        answers = many.map(lambda n: pair[n % 2].request("POST", "/v1/sandboxes", json=body), range(8))
    assert len({answer.json()["id"] for answer in answers}) == 8
    changed = {"capacitySpec": {**size, "bufferMin": 1, "bufferMax": 1}}
    assert pair[1].request("PUT", "/v1/pools/p", json=changed).json()["status"]["revision"] == "2"
    _until(lambda: [ready(server) for server in pair] == [1, 1])
    assert pair[0].request("DELETE", "/v1/pools/p").status_code == 204
    _until(lambda: pair[1].request("GET", "/v1/pools/p").status_code == 404)
    assert pair[1].request("PUT", "/v1/pools/p", json=changed).status_code == 404


def test_nothing_is_done_twice(pair: tuple[Server, Server]) -> None:
    """Twenty that expire at once, on two servers that both look every moment."""
    one, two = pair
    ids = [s.request("POST", "/v1/sandboxes", json=BODY).json()["id"] for s in (one, two) for _ in range(10)]
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 12))
    for number, sandbox_id in enumerate(ids):
        there = (one, two)[number % 2]  # every second one is asked of the other server
        path = f"/v1/sandboxes/{sandbox_id}/renew-expiration"
        assert there.request("POST", path, json={"expiresAt": soon}).status_code == 200
    _until(lambda: not one.request("GET", "/v1/sandboxes").json()["items"], 60)
    both = one.output + two.output
    removed = [line for line in both.splitlines() if "sandbox.removed" in line]
    assert [sum(sandbox_id in line for line in removed) for sandbox_id in ids] == [1] * 20


def test_a_killed_server_is_missed_and_comes_back(pair: tuple[Server, Server]) -> None:
    one, two = pair
    made = one.request("POST", "/v1/sandboxes", json=BODY).json()
    path = f"/v1/sandboxes/{made['id']}"
    one.crash()
    _until(lambda: len(_alive(two)) == 1)
    away = two.request("POST", f"{path}/pause")
    assert (away.status_code, away.json()["code"]) == (503, "SERVER::AWAY") and away.headers["retry-after"]
    assert two.request("GET", path).status_code == 200
    one.start()
    assert one.request("GET", path).json()["status"]["state"] == "Running"
    _until(lambda: two.request("POST", f"{path}/pause").status_code == 202)


def test_a_copy_of_a_server_is_refused(pair: tuple[Server, Server], url: str, tmp_path: Path) -> None:
    one, _ = pair
    copy = make(tmp_path / "copy", url)
    shutil.copy(one.data_dir / "server-id", copy.data_dir / "server-id")
    with pytest.raises(AssertionError, match="another process acts as the server"):
        copy.start()


def test_who_stood_still_while_another_took_its_name_does_nothing(
    pair: tuple[Server, Server], url: str, tmp_path: Path
) -> None:
    one, two = pair
    path = f"/v1/sandboxes/{one.request('POST', '/v1/sandboxes', json=BODY).json()['id']}"
    copy = make(tmp_path / "copy", url)
    shutil.copy(one.data_dir / "server-id", copy.data_dir / "server-id")
    assert one.process
    one.process.send_signal(signal.SIGSTOP)
    try:
        _until(lambda: len(_alive(two)) == 1)
        copy.start()
    finally:
        one.process.send_signal(signal.SIGCONT)
    for method, place in (("POST", "/v1/sandboxes"), ("DELETE", path), ("POST", f"{path}/pause")):
        refused = one.request(method, place, json=BODY if place == "/v1/sandboxes" else None)
        assert (refused.status_code, refused.json()["code"]) == (503, "SERVER::AWAY"), (method, place)
        assert "another process acts" in refused.json()["message"]
    copy.stop()
    assert one.request("POST", "/v1/sandboxes", json=BODY).status_code == 202, (
        "at once, as the other has left"
    )


def test_the_database_goes_away_and_comes_back(
    pair: tuple[Server, Server], database_server: Postgres
) -> None:
    one, two = pair
    made = one.request("POST", "/v1/sandboxes", json=BODY).json()
    database_server.stop()
    refused = one.request("GET", "/v1/sandboxes")
    assert refused.status_code == 503 and refused.headers["retry-after"]
    database_server.start()
    for server in pair:
        _until(lambda s=server: s.request("GET", "/v1/sandboxes").status_code == 200)  # type: ignore[misc]
        _until(lambda s=server: s.request("POST", "/v1/sandboxes", json=BODY).status_code == 202)  # type: ignore[misc]
    assert two.request("GET", f"/v1/sandboxes/{made['id']}").json()["status"]["state"] == "Running"


def test_a_key_of_its_own_is_needed(url: str, tmp_path: Path) -> None:
    server = Server(tmp_path / "one", "fake", config(url))
    with pytest.raises(AssertionError, match="api_key is not"):
        server.start()


def test_a_store_of_its_own_is_taken_along_and_never_left_behind(
    database_server: Postgres, tmp_path: Path
) -> None:
    url = database_server.database()
    server = make(tmp_path / "one", url)
    server.extra = ""
    server.start()
    told = server.request("POST", "/v1/keys", json={"name": "team", "scopes": ["create"]}).json()
    key = {"OPEN-SANDBOX-API-KEY": told["key"], "Idempotency-Key": "once"}
    box = server.request("POST", "/v1/sandboxes", json={**BODY, "metadata": {"a": "b"}}, headers=key).json()
    path = f"/v1/sandboxes/{box['id']}"
    taken = server.request("POST", f"{path}/snapshots", json={}).json()["id"]
    _until(lambda: server.request("GET", f"/v1/snapshots/{taken}").json()["status"]["state"] == "Ready")
    server.stop()
    server.extra = config(url)
    with pytest.raises(AssertionError, match=r"holds 1 sandboxes, 1 snapshots, 1 api_keys"):
        server.start()
    for more, left in ((["--dry-run"], True), ([], False), ([], False)):
        command = [sys.executable, "-m", "casulo.cli", "store", "migrate", *more]
        done = subprocess.run(
            [*command, "--config", str(server.data_dir / "test.toml")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (server.data_dir / "casulo.db").exists() is left, done.stdout
    server.start()
    assert server.request("GET", path, headers=key).json()["metadata"] == {"a": "b"}
    assert server.request("GET", path).json()["status"]["state"] == "Running"
    again = server.request("POST", "/v1/sandboxes", json={**BODY, "metadata": {"a": "b"}}, headers=key)
    assert again.json()["id"] == box["id"]
    body = {name: value for name, value in BODY.items() if name != "image"} | {"snapshotId": taken}
    assert server.request("POST", "/v1/sandboxes", json=body).status_code == 202
    server.stop()
    for wrong in ("", config(database_server.database())):
        server.extra = wrong
        with pytest.raises(AssertionError, match="would remove everything that runs here"):
            server.start()
    server.extra = config(url)
    server.start()
    assert server.request("GET", path).json()["status"]["state"] == "Running"
    server.delete_all()
    server.stop()


def _alive(server: Server) -> list[str]:
    return [item["id"] for item in server.request("GET", "/v1/servers").json()["items"] if item["alive"]]


def _until(holds: Callable[[], object], within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
