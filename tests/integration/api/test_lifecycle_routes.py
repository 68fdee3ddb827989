# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The lifecycle routes as they look on the wire."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
from structlog.typing import EventDict

from casulo.model.errors import Code, RuntimeFailure
from integration.api.conftest import StartApi
from integration.api.harness import BODY, KEY, TOKEN, Api


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as made:
        yield made


def test_create_answers_with_the_running_sandbox(client: httpx.Client, api: Api) -> None:
    answer = client.post("/v1/sandboxes", json={**BODY, "metadata": {"team": "red"}, "secureAccess": False})
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["location"] == f"/v1/sandboxes/{body['id']}"
    assert uuid.UUID(body["id"]).version == 4
    assert body["status"]["state"] == "Running" and body["status"]["lastTransitionAt"].endswith("Z")
    assert body["entrypoint"] == ["true"] and body["metadata"] == {"team": "red"}
    assert "expiresAt" in body and "null" not in answer.text and "platform" not in body
    assert body["casulo"] == {
        "endpoint": f"127.0.0.1:{api.upstream.port}",
        "headers": {"X-EXECD-ACCESS-TOKEN": TOKEN},
    }


def test_every_route_also_works_without_v1(client: httpx.Client, box: str) -> None:
    for prefix in ("", "/v1"):
        assert client.get(f"{prefix}/sandboxes/{box}").json()["id"] == box
        assert client.get(f"{prefix}/sandboxes").json()["pagination"]["page"] == 1
        assert client.get(f"{prefix}/capabilities").status_code == 200
        assert client.get(f"{prefix}/templates").status_code == 501
    assert client.post("/metrics/events", json={}).status_code == 404


def test_nothing_is_redirected(client: httpx.Client, box: str) -> None:
    for path in ("/v1/sandboxes/", f"/v1/sandboxes/{box}/", "/health/"):
        answer = client.get(path)
        assert answer.status_code == 404 and answer.json()["code"] == Code.NO_SUCH_ROUTE


def test_get_shows_what_was_asked_for(client: httpx.Client, api: Api) -> None:
    box = api.sandbox(
        timeout=None,
        platform={"os": "Linux", "arch": "AMD64"},
        env={"A": "1", "DROPPED": None},
        extensions={"opensandbox.extensions.note": "kept", "other": "passes silently"},
    )
    answer = client.get(f"/v1/sandboxes/{box}")
    body = answer.json()
    assert body["image"] == {"uri": "host"} and body["platform"] == {"os": "linux", "arch": "amd64"}
    assert body["extensions"] == {"opensandbox.extensions.note": "kept"}
    assert "expiresAt" not in body and "null" not in answer.text and TOKEN not in answer.text


def test_delete_then_not_found_everywhere(client: httpx.Client, box: str) -> None:
    gone = client.delete(f"/v1/sandboxes/{box}")
    assert (gone.status_code, gone.content) == (204, b"")
    calls = [
        ("GET", f"/v1/sandboxes/{box}"),
        ("DELETE", f"/v1/sandboxes/{box}"),
        ("POST", f"/v1/sandboxes/{box}/pause"),
        ("POST", f"/v1/sandboxes/{box}/resume"),
        ("GET", f"/v1/sandboxes/{box}/endpoints/8080"),
        ("GET", f"/v1/sandboxes/{box}/proxy/8080/"),
        ("GET", f"/v1/sandboxes/{box}/diagnostics/logs"),
    ]
    for method, path in calls:
        answer = client.request(method, path)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == Code.SANDBOX_NOT_FOUND and answer.json()["message"]


def test_pause_and_resume(client: httpx.Client, box: str) -> None:
    for action, conflict in (("pause", Code.SANDBOX_NOT_RUNNING), ("resume", Code.SANDBOX_NOT_PAUSED)):
        first = client.post(f"/v1/sandboxes/{box}/{action}")
        assert (first.status_code, first.content) == (202, b"")
        again = client.post(f"/v1/sandboxes/{box}/{action}")
        assert (again.status_code, again.json()["code"]) == (409, conflict)


def test_renew(client: httpx.Client, api: Api, box: str) -> None:
    path = f"/v1/sandboxes/{box}/renew-expiration"
    answer = client.post(path, json={"expiresAt": "2999-01-02T03:04:05.678901"})
    assert answer.json() == {"expiresAt": "2999-01-02T03:04:05.678901Z"}
    answer = client.post(path, json={"expiresAt": "2999-01-02T03:04:05+02:00"})
    assert answer.json() == {"expiresAt": "2999-01-02T01:04:05Z"}
    past = client.post(path, json={"expiresAt": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["code"]) == (400, Code.INVALID_EXPIRATION)
    manual = api.sandbox(timeout=None)
    answer = client.post(
        f"/v1/sandboxes/{manual}/renew-expiration", json={"expiresAt": "2999-01-01T00:00:00Z"}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, Code.INVALID_EXPIRATION)


def test_metadata_patch(client: httpx.Client, api: Api) -> None:
    box = api.sandbox(metadata={"a": "1", "b": "2"})
    path = f"/v1/sandboxes/{box}/metadata"
    assert client.patch(path, json={"a": None, "c": "3"}).json()["metadata"] == {"b": "2", "c": "3"}
    assert client.patch(path, json={"b": None, "c": None}).json()["metadata"] == {}
    for changes in ({"opensandbox.io/x": "y"}, {"ok": "not a label!"}):
        refused = client.patch(path, json=changes)
        assert (refused.status_code, refused.json()["code"]) == (400, Code.INVALID_METADATA_LABEL)
    assert client.patch(path, json={"n": 1}).status_code == 422


def test_list_filters_by_doubly_encoded_metadata(client: httpx.Client, api: Api) -> None:
    mark = uuid.uuid4().hex
    box = api.sandbox(metadata={"run": mark, "team": "infra"})
    api.sandbox(metadata={"run": mark})
    found = client.get(f"/v1/sandboxes?metadata=run%3D{mark}%26team%3Dinfra").json()
    assert [item["id"] for item in found["items"]] == [box]
    assert found["pagination"] == {
        "page": 1,
        "pageSize": 20,
        "totalItems": 1,
        "totalPages": 1,
        "hasNextPage": False,
    }
    assert client.get("/v1/sandboxes?metadata=a%2520b%3Dc%2526d%253D%2525%26e%3Df").json()["items"] == []
    for broken in ("metadata=novalue", "metadata=a%3D1%26%26b", "metadata=a%3D%25zz"):
        answer = client.get(f"/v1/sandboxes?{broken}")
        assert (answer.status_code, answer.json()["code"]) == (400, Code.INVALID_METADATA_FORMAT), broken


def test_list_filters_by_state_and_pages(client: httpx.Client, api: Api) -> None:
    mark = uuid.uuid4().hex
    boxes = [api.sandbox(metadata={"run": mark}) for _ in range(3)]
    client.post(f"/v1/sandboxes/{boxes[0]}/pause")
    run = f"metadata=run%3D{mark}"
    assert len(client.get(f"/v1/sandboxes?{run}&state=PAUSED&state=running").json()["items"]) == 3
    assert [i["id"] for i in client.get(f"/v1/sandboxes?{run}&state=paused").json()["items"]] == [boxes[0]]
    assert client.get(f"/v1/sandboxes?{run}&state=Unknown").json()["pagination"]["totalPages"] == 0
    page = client.get(f"/v1/sandboxes?{run}&pageSize=2&page=2").json()
    assert [item["id"] for item in page["items"]] == [boxes[0]]
    for query in ("page=0", "pageSize=0", "pageSize=201", "page=x"):
        assert client.get(f"/v1/sandboxes?{query}").status_code == 422


def test_idempotency_key(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    first = client.post("/v1/sandboxes", json=BODY, headers=headers)
    text = json.dumps(dict(reversed(BODY.items())), indent=3)
    again = client.post(
        "/v1/sandboxes", content=text, headers={**headers, "Content-Type": "application/json"}
    )
    assert again.status_code == 202 and again.json()["id"] == first.json()["id"]
    other = client.post("/v1/sandboxes", json={**BODY, "timeout": 700}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, Code.IDEMPOTENCY_CONFLICT)


@pytest.mark.parametrize("with_key", [False, True], ids=["without-key", "with-key"])
def test_b043_caller_that_goes_away_during_create(api: Api, with_key: bool) -> None:
    api.runtime.delay = 0.5
    run = uuid.uuid4().hex
    try:
        body = json.dumps({**BODY, "metadata": {"run": run}}).encode()
        extra = b"Idempotency-Key: %b\r\n" % run.encode() if with_key else b""
        with api.connect() as connection:
            connection.sendall(
                b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"OPEN-SANDBOX-API-KEY: %b\r\nContent-Length: %d\r\n%b\r\n%b"
                % (KEY.encode(), len(body), extra, body)
            )
            time.sleep(0.2)
        time.sleep(0.6)
    finally:
        api.runtime.delay = 0
    with api.client() as client:
        items = client.get(f"/v1/sandboxes?metadata=run%3D{run}").json()["items"]
    assert len(items) == with_key
    assert all(item["status"]["state"] == "Running" for item in items)


def test_a_failed_start_is_an_error_and_leaves_nothing(api: Api, client: httpx.Client) -> None:
    run = uuid.uuid4().hex
    api.runtime.failure = RuntimeFailure("no luck", code=Code.SANDBOX_START_FAILED, hint="try again")
    try:
        answer = client.post("/v1/sandboxes", json={**BODY, "metadata": {"run": run}})
    finally:
        api.runtime.failure = None
    assert answer.status_code == 500
    assert answer.json() == {"code": Code.SANDBOX_START_FAILED, "message": "no luck", "hint": "try again"}
    assert client.get(f"/v1/sandboxes?metadata=run%3D{run}").json()["items"] == []


def test_an_unforeseen_failure_tells_nothing(api: Api, client: httpx.Client, log: list[EventDict]) -> None:
    api.runtime.failure = ZeroDivisionError("a secret detail")
    try:
        answer = client.post("/v1/sandboxes", json=BODY)
    finally:
        api.runtime.failure = None
    assert (answer.status_code, answer.json()["code"]) == (500, Code.UNKNOWN)
    assert "secret" not in answer.text
    assert {"request.failed": answer.headers["x-request-id"]} in [
        {line["event"]: line.get("request_id")} for line in log
    ]


def test_telemetry(client: httpx.Client) -> None:
    event = {"eventType": "sandbox.create", "createDurationMs": 5, "success": True, "sdkLanguage": "python"}
    answer = client.post("/v1/metrics/events", json=event)
    assert (answer.status_code, answer.content) == (204, b"")
    assert client.post("/v1/metrics/events", json={**event, "eventType": "other"}).status_code == 422


def test_health_and_version_are_open(api: Api) -> None:
    with api.client(headers={}) as stranger:
        assert stranger.get("/health").json() == {"status": "healthy"}
        assert stranger.get("/version").json() == {"version": "0.1.0"}
        assert stranger.get("/openapi.json").status_code == 200
        assert stranger.get("/v1/health").status_code == 401


def test_capabilities(client: httpx.Client) -> None:
    runtimes = client.get("/v1/capabilities").json()["runtimes"]
    assert runtimes == [
        {
            "name": "socket",
            "default": True,
            "isolations": [
                {
                    "name": "container",
                    "default": False,
                    "engine": "",
                    "platform": "",
                    "features": ["pause"],
                    "missing": {"gpu": "sockets have none"},
                }
            ],
            "missing": {},
        }
    ]


def test_proxied_requests_renew_where_that_was_asked_for(new_api: StartApi) -> None:
    api = new_api(renew_intent={"enabled": True, "min_interval_seconds": 0})
    api.upstream.handler = lambda request: request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    box = api.sandbox(timeout=60, extensions={"access.renew.extend.seconds": "600"})
    with api.client() as client:
        created = client.get(f"/v1/sandboxes/{box}").json()["expiresAt"]
        client.get(f"/v1/sandboxes/{box}/proxy/80/", headers={"OpenSandbox-Access-Renew": "skip"})
        assert client.get(f"/v1/sandboxes/{box}").json()["expiresAt"] == created
        client.get(f"/v1/sandboxes/{box}/proxy/80/")
        assert client.get(f"/v1/sandboxes/{box}").json()["expiresAt"] > created
