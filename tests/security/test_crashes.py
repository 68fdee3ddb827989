# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`kill -9` of the server at any point: afterwards nothing is lost and nothing is orphaned."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from support.server import Server
from support.traces import Traces, count

BODY = {"image": {"uri": "host"}, "entrypoint": ["sleep", "1000"], "resourceLimits": {}, "timeout": 600}


@pytest.mark.parametrize("milliseconds", [5, 20, 40, 80])
def test_killed_while_creating(new_server, milliseconds: int) -> None:
    server: Server = new_server("local")
    _warm(server)
    before = _settled(server)
    threads = [threading.Thread(target=_create_quietly, args=(server,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(milliseconds / 1000)
    server.crash()
    for thread in threads:
        thread.join()
    server.start()
    _everything_listed_works(server)
    server.delete_all()
    _nothing_is_left(server, before)


@pytest.mark.parametrize("milliseconds", [2, 10])
def test_killed_while_deleting(new_server, milliseconds: int) -> None:
    server: Server = new_server("local")
    _warm(server)
    before = _settled(server)
    ids = [server.request("POST", "/v1/sandboxes", json=BODY).json()["id"] for _ in range(3)]
    threads = [threading.Thread(target=_delete_quietly, args=(server, i)) for i in ids]
    for thread in threads:
        thread.start()
    time.sleep(milliseconds / 1000)
    server.crash()
    for thread in threads:
        thread.join()
    server.start()
    _everything_listed_works(server)
    server.delete_all()
    _nothing_is_left(server, before)


def test_running_sandboxes_survive(new_server) -> None:
    server: Server = new_server("local")
    made = [server.request("POST", "/v1/sandboxes", json=BODY).json() for _ in range(3)]
    for item in made:
        assert _run(item, "echo kept > /tmp/kept") == 200
    for _ in range(2):
        server.crash()
        server.start()
    listed = server.request("GET", "/v1/sandboxes").json()["items"]
    assert {i["id"] for i in listed} == {i["id"] for i in made}
    assert {i["status"]["state"] for i in listed} == {"Running"}
    for item in made:
        endpoint = server.request("GET", f"/v1/sandboxes/{item['id']}/endpoints/44772").json()
        assert _run({"casulo": endpoint}, "grep kept /tmp/kept") == 200


def test_paused_sandbox_is_still_paused(new_server) -> None:
    server: Server = new_server("local")
    made = server.request("POST", "/v1/sandboxes", json=BODY).json()
    path = f"/v1/sandboxes/{made['id']}"
    assert server.request("POST", f"{path}/pause").status_code == 202
    server.crash()
    server.start()
    assert server.request("GET", path).json()["status"]["state"] == "Paused"
    assert server.request("POST", f"{path}/resume").status_code == 202
    assert _run(made, "true") == 200


def test_entrypoint_that_ended_while_the_server_was_down(new_server) -> None:
    server: Server = new_server("local")
    body = {**BODY, "entrypoint": ["sh", "-c", "sleep 1; exit 5"]}
    made = server.request("POST", "/v1/sandboxes", json=body).json()
    server.crash()
    time.sleep(1.5)
    server.start()
    status = server.request("GET", f"/v1/sandboxes/{made['id']}").json()["status"]
    assert status["state"] == "Failed" and "5" in status["message"]


def test_second_server_on_the_same_data_is_refused(new_server) -> None:
    server: Server = new_server("local")
    second = Server(server.data_dir, "local")
    second.extra = server.extra
    with pytest.raises(AssertionError, match="did not start"):
        second.start()
    assert server.request("GET", "/health").status_code == 200


def _warm(server: Server) -> None:
    """Once through everything, so that what is made once and kept is there before counting.

    Also proves that the counting sees a living sandbox.
    """
    before = _settled(server)
    made = server.request("POST", "/v1/sandboxes", json=BODY).json()
    during = before.growth(_settled(server))
    for kind in ("mounts", "namespaces", "interfaces", "cgroups", "processes", "folders"):
        assert during[f"{kind}_more"] > 0, (kind, during)
    server.request("DELETE", f"/v1/sandboxes/{made['id']}")


def _create_quietly(server: Server) -> None:
    try:
        server.request("POST", "/v1/sandboxes", json=BODY)
    except httpx.TransportError:
        return  # the server is being killed, which is the point


def _delete_quietly(server: Server, sandbox_id: str) -> None:
    try:
        server.request("DELETE", f"/v1/sandboxes/{sandbox_id}")
    except httpx.TransportError:
        return  # the server is being killed, which is the point


def _everything_listed_works(server: Server) -> None:
    """What was being started when the server died is started over behind its back, and then works too."""
    for _ in range(300):
        items = server.request("GET", "/v1/sandboxes").json()["items"]
        if not any(item["status"]["state"] in ("Pending", "Stopping") for item in items):
            break
        time.sleep(0.1)
    for item in items:
        if item["status"]["state"] == "Running":
            endpoint = server.request("GET", f"/v1/sandboxes/{item['id']}/endpoints/44772").json()
            assert _run({"casulo": endpoint}, "true") == 200
        else:
            assert item["status"]["state"] in ("Failed", "Terminated"), item


def _run(created: dict, command: str) -> int:
    """Run a command; 200 only when it succeeded."""
    told = created["casulo"]
    url = f"http://{told['endpoint']}/command"
    answer = httpx.post(url, json={"command": command}, headers=told["headers"], trust_env=False, timeout=20)
    return answer.status_code if "execution_complete" in answer.text else 599


def _settled(server: Server) -> Traces:
    """The count once it no longer changes: spare slots are made, connections closed."""
    assert server.process is not None
    previous, same = None, 0
    for _ in range(100):
        now = count(server.process.pid, server.data_dir)
        same = same + 1 if now == previous else 0
        if same == 4:
            return now
        previous = now
        time.sleep(0.1)
    assert previous is not None
    return previous


def _nothing_is_left(server: Server, before: Traces) -> None:
    after = _settled(server)
    more = {kind: n for kind, n in before.growth(after).items() if n > 0}
    more.pop("server_descriptors_more", None)  # another process now; test of leaks within one: the benchmark
    more.pop("server_threads_more", None)
    assert not more, more
