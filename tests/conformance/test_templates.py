# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates as the official protocol has them. Files are below ~, which every runtime keeps."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from casulo.client.connection import Connection
from casulo.client.sync import Client, Sandbox
from casulo.model.errors import Code, Conflict
from support.server import Server

PUBLISH = "s3://bucket/templates"


@pytest.fixture(params=["fake", "local"])
def place(request: pytest.FixtureRequest) -> str:
    """Keeping is a matter of snapshots, which each runtime has tests of its own for."""
    return str(request.param)


def ordered(server: Server, **members: Any) -> dict[str, Any]:
    body = {"image": "host", "publish": PUBLISH, **members}
    answer = server.request("POST", "/v1/templates", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/templates/{made['templateId']}"
    return made


def finished(server: Server, template_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        found: dict[str, Any] = server.request("GET", f"/v1/templates/{template_id}").json()
        if found["status"]["phase"] in ("Succeeded", "Failed"):
            return found
        assert found["status"]["phase"] in ("Pending", "Building") and time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> int:
    """Sandboxes of the fake runtime share the ports of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def no_sandbox(server: Server) -> None:
    """What a template was made from goes, a moment later."""
    deadline = time.monotonic() + 30
    while server.request("GET", "/v1/sandboxes").json()["items"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_made_found_used_and_deleted(server: Server) -> None:
    probe = "cmd://echo warm > ~/warm"
    made = ordered(
        server,
        env={"WHO": "template", "NONE": None},
        entrypoint=["sleep", "1000"],
        resourceLimits={"memory": "256Mi"},
        metadata={"team": "infra"},
        readiness={"probe": probe, "warmupSeconds": 30},
        format="native",
    )
    template_id = made["templateId"]
    assert template_id.startswith("tpl_") and made["status"]["phase"] in ("Pending", "Building")
    found = finished(server, template_id)
    assert found["status"]["phase"] == "Succeeded", found
    for name in ("image", "publish", "format", "env", "entrypoint", "metadata", "readiness"):
        assert found[name] == made[name]
    assert (found["env"], found["format"]) == ({"WHO": "template"}, "native")
    no_sandbox(server)
    asked = {"metadata": "team=infra"}
    assert [one["templateId"] for one in _list(server, **asked)["items"]] == [template_id]
    assert not _list(server, metadata="team=other")["items"]
    assert not server.request("GET", "/v1/snapshots").json()["items"]

    with Client(Connection(server.url, server.api_key)) as client:
        box = Sandbox.create(template=template_id, client=client)
        assert box.commands.run("cat ~/warm; echo $WHO").stdout == "warm\ntemplate\n"
        assert box.info.entrypoint == ("sleep", "1000")
        endpoint = server.request("GET", f"/v1/sandboxes/{box.id}/endpoints/44772")
        assert endpoint.headers["open-sandbox-origin"] == "template"
        assert "snapshotId" not in server.request("GET", f"/v1/sandboxes/{box.id}").text
        assert server.request("DELETE", f"/v1/templates/{template_id}").status_code == 204
        assert box.commands.run("cat ~/warm").stdout == "warm\n"
        box.kill()
    for answer in (_create(server, template_id), server.request("GET", f"/v1/templates/{template_id}")):
        assert (answer.status_code, answer.json()["code"]) == (404, Code.TEMPLATE_NOT_FOUND)


def test_probes_of_ports_wait_for_them(server: Server) -> None:
    serve = (
        "import http.server as h; h.HTTPServer(('127.0.0.1', %d), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    for kind, port in (("http", 18911), ("tcp", 18912)):
        late = ["sh", "-c", f'sleep 0.5; exec python3 -c "{serve % port}"']
        probe = {"probe": f"{kind}://127.0.0.1:{port}", "warmupSeconds": 40}
        made = ordered(server, entrypoint=late, readiness=probe)
        assert finished(server, made["templateId"])["status"]["phase"] == "Succeeded"
        server.request("DELETE", f"/v1/templates/{made['templateId']}")


def test_a_probe_that_never_succeeds_fails_and_leaves_nothing(server: Server) -> None:
    made = ordered(server, readiness={"probe": f"tcp://127.0.0.1:{free_port()}", "warmupSeconds": 1})
    found = finished(server, made["templateId"])
    assert found["status"]["phase"] == "Failed" and "did not succeed" in found["status"]["message"]
    no_sandbox(server)
    answer = _create(server, made["templateId"])
    assert (answer.status_code, answer.json()["code"]) == (409, Code.TEMPLATE_NOT_READY)
    assert server.request("DELETE", f"/v1/templates/{made['templateId']}").status_code == 204


def _outcomes(client: Client, **how: bool) -> dict[str, str]:
    told = client.templates.prune(**how)
    kept = {item.id: f"kept: {item.reason}" for item in told.kept if item.kind == "template"}
    return kept | {item.id: item.reason for item in told.removed if item.kind == "template"}


def test_pruning_takes_what_nobody_needs_and_says_why(server: Server) -> None:
    port = free_port()
    failed = ordered(server, readiness={"probe": f"tcp://127.0.0.1:{port}", "warmupSeconds": 0})["templateId"]
    used, idle = (ordered(server)["templateId"] for _ in range(2))
    phases = [finished(server, each)["status"]["phase"] for each in (failed, used, idle)]
    assert phases == ["Failed", "Succeeded", "Succeeded"]
    no_sandbox(server)
    with Client(Connection(server.url, server.api_key)) as client:
        box = Sandbox.create(template=used, client=client)
        source = Sandbox.create("host", client=client)
        older, newer = (source.snapshot("template/mine").id for _ in range(2))
        kept = source.snapshot("no template")
        outcomes = {failed: "failed", used: "kept: in use", older: "replaced by a newer one"}
        assert _outcomes(client, dry_run=True) == outcomes == _outcomes(client)
        assert _outcomes(client, dry_run=True, unused=True) == {
            used: "kept: in use",
            idle: "unused",
            newer: "unused",
        }
        for each in (box, source):
            each.kill()
        assert _outcomes(client, unused=True) == dict.fromkeys((used, idle, newer), "unused")
        assert [one.id for one in client.snapshots.list()] == [kept.id]
        client.snapshots.delete(kept.id)
    assert not _list(server)["items"]


def test_what_somebody_is_starting_from_is_not_removed(server: Server) -> None:
    hook = {"lifecycle": {"preStart": {"command": ["sleep", "2"]}}, "resourceLimits": {}, "timeout": 600}
    with Client(Connection(server.url, server.api_key)) as client, ThreadPoolExecutor() as pool:
        source = Sandbox.create("host", client=client)
        snapshot = source.snapshot("template/mine").id
        source.kill()
        body = {"snapshotId": snapshot, **hook}
        making = pool.submit(server.request, "POST", "/v1/sandboxes", json=body)
        while not client.list().items and not making.done():
            time.sleep(0.02)
        with pytest.raises(Conflict, match="is being made of it") as refused:
            client.templates.delete("mine")
        assert refused.value.code == Code.SNAPSHOT_INVALID_STATE
        assert making.result().status_code == 202, making.result().text
        client.templates.delete("mine")
        server.delete_all()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"publish": "/somewhere"}, 400),
        ({"readiness": {"probe": "udp://127.0.0.1:1"}}, 400),
        ({"readiness": {"probe": "http://example.com/"}}, 400),
        ({"readiness": {"probes": []}}, 422),
        ({"volumes": []}, 422),
        ({"format": "tar"}, 422),
        ({"metadata": {"a b": "c"}}, 400),
        ({"resourceLimits": {"memory": "much"}}, 400),
    ],
)
def test_what_is_not_understood_is_refused(server: Server, change: dict[str, Any], status: int) -> None:
    body = {"image": "host", "publish": PUBLISH, **change}
    answer = server.request("POST", "/v1/templates", json=body)
    assert answer.status_code == status, answer.text
    assert not _list(server)["items"]


def _list(server: Server, **query: str) -> dict[str, Any]:
    found: dict[str, Any] = server.request("GET", "/v1/templates", params=query).json()
    return found


def _create(server: Server, template_id: str) -> httpx.Response:
    return server.request("POST", "/v1/sandboxes", json={"templateId": template_id, "timeout": 600})
