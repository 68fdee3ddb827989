# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`kill -9` of the server while it takes or removes snapshots: nothing stands still, nothing is left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from support.server import Server

BODY = {"image": {"uri": "host"}, "entrypoint": ["sleep", "1000"], "resourceLimits": {}, "timeout": 600}
FILL = "head -c 50M /dev/zero > ~/large; mkdir ~/d; cd ~/d; seq 2000 | split -l 1 -a 4; echo kept > ~/kept"


@pytest.mark.parametrize("moment", ["frozen", "copying", "keeping"])
def test_killed_while_taking(new_server, moment: str) -> None:
    server: Server = new_server("local")
    source = server.request("POST", "/v1/sandboxes", json=BODY).json()
    assert _run(source, FILL) == 200
    shelf = server.data_dir / "snapshots"
    path = f"/v1/sandboxes/{source['id']}/snapshots"
    taking = threading.Thread(target=_quietly, args=(server, "POST", path))
    taking.start()
    _until(lambda: _reached(shelf, moment))
    server.crash()
    taking.join()
    server.start()
    assert _run(_found(server, source["id"]), "grep kept ~/kept") == 200, "it must not stand still"
    (snapshot,) = server.request("GET", "/v1/snapshots").json()["items"]
    assert snapshot["status"]["state"] in ("Failed", "Ready"), snapshot
    if snapshot["status"]["state"] == "Failed":
        assert snapshot["status"]["reason"] == "snapshot_recovery_interrupted"
        _until(lambda: _is_empty(shelf))
    else:
        body = {k: v for k, v in BODY.items() if k != "image"} | {"snapshotId": snapshot["id"]}
        made = server.request("POST", "/v1/sandboxes", json=body)
        assert made.status_code == 202, made.text
        assert _run(made.json(), "test $(ls ~/d | wc -l) = 2000 && grep kept ~/kept") == 200
    assert server.request("DELETE", f"/v1/snapshots/{snapshot['id']}").status_code == 204
    server.delete_all()
    _until(lambda: _is_empty(shelf))


def test_killed_while_deleting_and_restoring(new_server) -> None:
    server: Server = new_server("local")
    source = server.request("POST", "/v1/sandboxes", json=BODY).json()
    assert _run(source, FILL) == 200
    ids = [_taken(server, source["id"]) for _ in range(2)]
    body = {k: v for k, v in BODY.items() if k != "image"} | {"snapshotId": ids[0]}
    work = [("DELETE", f"/v1/snapshots/{ids[1]}", {}), ("POST", "/v1/sandboxes", {"json": body})]
    threads = [threading.Thread(target=_quietly, args=(server, m, path), kwargs=o) for m, path, o in work]
    for thread in threads:
        thread.start()
    time.sleep(0.03)
    server.crash()
    for thread in threads:
        thread.join()
    server.start()
    _until(lambda: _settled(server))
    states = [item["status"]["state"] for item in server.request("GET", "/v1/snapshots").json()["items"]]
    assert set(states) == {"Ready"}, states
    for item in server.request("GET", "/v1/sandboxes").json()["items"]:
        assert item["status"]["state"] == "Running", item
        assert _run(_found(server, item["id"]), "grep kept ~/kept") == 200
    for item in server.request("GET", "/v1/snapshots").json()["items"]:
        assert server.request("DELETE", f"/v1/snapshots/{item['id']}").status_code == 204
    server.delete_all()
    _until(lambda: _is_empty(server.data_dir / "snapshots"))


def _reached(shelf: Path, moment: str) -> bool:
    tmp, records = list((shelf / "tmp").iterdir()), list((shelf / "records").iterdir())
    if moment == "frozen":
        return any((shelf / "frozen").iterdir())
    if moment == "copying":
        return any(place.is_dir() and any(place.iterdir()) for place in tmp)
    return bool(records) or (bool(tmp) and not any((shelf / "frozen").iterdir()))


def _is_empty(shelf: Path) -> bool:
    return not any(any((shelf / n).iterdir()) for n in ("records", "layers", "holds", "tmp", "frozen"))


def _settled(server: Server) -> bool:
    found = [*server.request("GET", "/v1/snapshots").json()["items"]]
    found += server.request("GET", "/v1/sandboxes").json()["items"]
    return all(item["status"]["state"] in ("Ready", "Running", "Failed") for item in found)


def _taken(server: Server, sandbox_id: str) -> str:
    made = server.request("POST", f"/v1/sandboxes/{sandbox_id}/snapshots", json={}).json()
    path = f"/v1/snapshots/{made['id']}"
    _until(lambda: server.request("GET", path).json()["status"]["state"] == "Ready")
    return str(made["id"])


def _quietly(server: Server, method: str, path: str, **options: object) -> None:
    try:
        server.request(method, path, **options)
    except httpx.TransportError:
        return  # the server is being killed, which is the point


def _until(holds: object, within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def _found(server: Server, sandbox_id: str) -> dict:
    return {"casulo": server.request("GET", f"/v1/sandboxes/{sandbox_id}/endpoints/44772").json()}


def _run(created: dict, command: str) -> int:
    """Run a command; 200 only when it succeeded."""
    told = created["casulo"]
    url = f"http://{told['endpoint']}/command"
    answer = httpx.post(url, json={"command": command}, headers=told["headers"], trust_env=False, timeout=20)
    return answer.status_code if "execution_complete" in answer.text else 599
