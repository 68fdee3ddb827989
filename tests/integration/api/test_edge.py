# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What holds for every request: ids, keys, error bodies, refusals, origins."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from casulo.model.errors import Code
from integration.api.conftest import StartApi
from integration.api.harness import BODY, KEY, Api, read_until

_BUCKET = {"bucket": "data", "endpoint": "oss.example.com", "accessKeyId": "i", "accessKeySecret": "s"}


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as made:
        yield made


def test_request_ids_on_every_answer(api: Api, client: httpx.Client, box: str) -> None:
    api.upstream.handler = lambda r: r.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    with api.client(headers={}) as stranger:
        answers = {
            200: client.get("/health"),
            401: stranger.get("/v1/sandboxes"),
            404: client.get("/nowhere"),
            405: client.put("/v1/sandboxes"),
            422: client.post("/v1/sandboxes", json={}),
            501: client.get("/v1/templates"),
        }
        proxied = stranger.get(f"/v1/sandboxes/{box}/proxy/8080/", headers={"X-Request-ID": "mine"})
    for status, answer in answers.items():
        assert answer.status_code == status
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        assert answer.headers.get_list("date") and "server" not in answer.headers
    assert proxied.headers.get_list("x-request-id") == ["mine"]
    with api.connect() as connection:
        connection.sendall(
            b"GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Request-ID:   any text, of theirs \r\n\r\n"
        )
        assert b"\r\nx-request-id: any text, of theirs\r\n" in read_until(connection, b"\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, Code.MISSING_API_KEY),
        ({"OPEN-SANDBOX-API-KEY": ""}, Code.MISSING_API_KEY),
        ({"OPEN-SANDBOX-API-KEY": "wrong"}, Code.INVALID_API_KEY),
        ({"OPEN-SANDBOX-API-KEY": KEY + "x"}, Code.INVALID_API_KEY),
    ],
)
def test_a_key_is_needed(api: Api, headers: dict[str, str], code: str) -> None:
    with api.client(headers=headers) as stranger:
        for path in ("/v1/sandboxes", "/sandboxes", "/v1/nowhere", "/v1/sandboxes/x/proxy/80/../../.."):
            answer = stranger.request("GET", httpx.URL(api.url + "/").copy_with(raw_path=path.encode()))
            assert (answer.status_code, answer.json()["code"]) == (401, code), path


def test_without_a_configured_key_any_is_accepted(new_api: StartApi) -> None:
    api = new_api(server={"api_key": None, "insecure": True})
    for headers in ({}, {"OPEN-SANDBOX-API-KEY": "whatever"}):
        with api.client(headers=headers) as client:
            assert client.get("/v1/sandboxes").status_code == 200


def test_validation_errors_carry_both_forms(client: httpx.Client) -> None:
    answer = client.post("/v1/sandboxes", json={**BODY, "timeout": 59, "env": {"SECRET": 42}})
    assert answer.status_code == 422
    body = answer.json()
    assert {tuple(item) for item in body["detail"]} == {("loc", "msg", "type")}
    assert body["code"] == Code.INVALID_REQUEST and "body.timeout" in body["message"]
    assert "42" not in answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"image": None},
        {"snapshotId": "s"},
        {"image": None, "snapshotId": "  "},
        {"templateId": "t"},
        {"image": None, "entrypoint": None, "resourceLimits": None, "timeout": None, "templateId": "t"},
        {"templateId": ""},
        {"resourceLimits": None},
        {"entrypoint": []},
        {"timeout": "600"},
        {"timeout": 600.5},
        {"timeout": True},
        {"env": {"OPENSANDBOX_LIFECYCLE": "x"}},
        {"credentialProxy": {"enabled": True}},
        {"lifecycle": {"preStart": {"command": ["x"]}}, "extensions": {"poolRef": "p"}},
        {"metadata": {"a": 1}},
    ],
    ids=str,
)
def test_model_rules(client: httpx.Client, change: dict[str, object]) -> None:
    assert client.post("/v1/sandboxes", json={**BODY, **change}).status_code == 422


def test_body_that_is_no_json(client: httpx.Client) -> None:
    answer = client.post("/v1/sandboxes", content=b"{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and answer.json()["code"] == Code.INVALID_REQUEST


def test_nulls_in_requests_are_accepted(client: httpx.Client) -> None:
    nulls = dict.fromkeys(
        ["env", "metadata", "extensions", "platform", "volumes", "networkPolicy", "lifecycle"]
    )
    answer = client.post("/v1/sandboxes", json={**BODY, **nulls, "timeout": None, "someNewMember": 1})
    assert answer.status_code == 202
    empty = {"volumes": [], "lifecycle": {}, "credentialProxy": {"enabled": False}, "snapshotId": ""}
    assert client.post("/v1/sandboxes", json={**BODY, **empty}).status_code == 202


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"image": None, "snapshotId": "s"}, 404, Code.SNAPSHOT_NOT_FOUND),
        (
            {"image": None, "entrypoint": None, "resourceLimits": None, "templateId": "t"},
            404,
            Code.TEMPLATE_NOT_FOUND,
        ),
        ({"extensions": {"poolRef": "p"}}, 404, Code.POOL_NOT_FOUND),
        ({"networkPolicy": {}}, 400, Code.NOT_SUPPORTED),
        ({"networkPolicy": {}, "credentialProxy": {"enabled": True}}, 400, Code.NOT_SUPPORTED),
        ({"secureAccess": True}, 400, Code.NOT_SUPPORTED),
        ({"volumes": [{"name": "v", "mountPath": "/v", "ossfs": _BUCKET}]}, 400, Code.VOLUME_UNSUPPORTED),
        ({"lifecycle": {"periodic": [{"name": "n"}]}}, 422, Code.INVALID_REQUEST),
        ({"extensions": {"bootstrap.execd.isolation": "enable"}}, 400, Code.NOT_SUPPORTED),
        ({"resourceLimits": {"gpu": "1"}}, 400, Code.NOT_SUPPORTED),
        ({"platform": {"os": "windows", "arch": "amd64"}}, 400, Code.NOT_SUPPORTED),
        ({"extensions": {"casulo.isolation": "microvm"}}, 400, Code.ISOLATION_UNAVAILABLE),
    ],
)
def test_b087_what_cannot_be_done_is_refused(
    client: httpx.Client, change: dict[str, object], status: int, code: str
) -> None:
    answer = client.post("/v1/sandboxes", json={**BODY, **change})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert body["message"]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/templates", Code.TEMPLATE_NOT_SUPPORTED),
        ("DELETE", "/templates/t", Code.TEMPLATE_NOT_SUPPORTED),
    ],
)
def test_routes_of_later_work_say_so(client: httpx.Client, method: str, path: str, code: str) -> None:
    for prefix in ("", "/v1"):
        answer = client.request(method, prefix + path, json=[])
        assert (answer.status_code, answer.json()["code"]) == (501, code)
        assert answer.json()["hint"]


def test_endpoint_forms(api: Api, client: httpx.Client, box: str) -> None:
    token = {"X-EXECD-ACCESS-TOKEN": "the-token"}
    daemon = f"127.0.0.1:{api.upstream.port}"
    host = f"127.0.0.1:{api.port}"
    path = f"/v1/sandboxes/{box}/endpoints"
    assert client.get(f"{path}/44772").json() == {"endpoint": daemon, "headers": token}
    assert client.get(f"{path}/8080?use_server_proxy=false").json() == {
        "endpoint": f"{daemon}/proxy/8080",
        "headers": token,
    }
    assert client.get(f"{path}/18080").json()["endpoint"] == f"{daemon}/proxy/18080"
    proxied = client.get(f"{path}/44772?use_server_proxy=true").json()
    assert proxied == {"endpoint": f"{host}/v1/sandboxes/{box}/proxy/44772", "headers": token}
    unprefixed = client.get(f"/sandboxes/{box}/endpoints/8080?use_server_proxy=true").json()
    assert unprefixed == {"endpoint": f"{host}/sandboxes/{box}/proxy/8080"}
    relayed = client.get(f"{path}/8080", headers={"X-Forwarded-For": "192.0.2.1", "Host": "box.example"})
    assert relayed.json() == {"endpoint": f"box.example/v1/sandboxes/{box}/proxy/8080"}


@pytest.mark.parametrize(
    ("tail", "status", "code"),
    [
        ("0", 400, Code.INVALID_PORT),
        ("65536", 400, Code.INVALID_PORT),
        ("http", 400, Code.INVALID_PORT),
        ("8080?expires=99999999999", 400, Code.API_NOT_SUPPORTED),
        ("8080?expires=99999999999&use_server_proxy=true", 400, Code.INVALID_PARAMETER),
        ("8080?expires=soon", 422, Code.INVALID_REQUEST),
    ],
)
def test_endpoint_refusals(client: httpx.Client, box: str, tail: str, status: int, code: str) -> None:
    answer = client.get(f"/v1/sandboxes/{box}/endpoints/{tail}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_eip_replaces_the_callers_address(new_api: StartApi) -> None:
    api = new_api(server={"eip": "203.0.113.7"})
    box = api.sandbox()
    with api.client() as client:
        found = client.get(f"/v1/sandboxes/{box}/endpoints/80?use_server_proxy=true").json()["endpoint"]
    assert found == f"203.0.113.7:{api.port}/v1/sandboxes/{box}/proxy/80"


def test_any_origin_may_call(api: Api, client: httpx.Client) -> None:
    headers = {"Origin": "http://page.example"}
    answer = client.get("/v1/sandboxes", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "http://page.example"
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "OPEN-SANDBOX-ORIGIN" in answer.headers["access-control-expose-headers"]
    asking = {**headers, "Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "x-a"}
    with api.client(headers={}) as stranger:
        told = stranger.options("/v1/sandboxes/x", headers=asking)
        refused = stranger.get("/v1/sandboxes", headers=headers)
    assert told.status_code == 200 and told.headers["access-control-allow-headers"] == "x-a"
    assert "DELETE" in told.headers["access-control-allow-methods"]
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"]


def test_diagnostics(api: Api, client: httpx.Client, box: str) -> None:
    folder = api.settings.data_dir / "sandboxes" / box
    folder.mkdir(parents=True)
    (folder / "entrypoint.log").write_bytes(b"".join(b"line %d\n" % n for n in range(150)))
    path = f"/v1/sandboxes/{box}/diagnostics"
    for scope in ("container", "all"):
        told = client.get(f"{path}/logs?scope={scope}").json()
        assert told["content"].splitlines() == [f"line {n}" for n in range(50, 150)]
        assert (told["kind"], told["scope"], told["delivery"]) == ("logs", scope, "inline")
        assert told["truncated"] and told["contentLength"] == len(told["content"])
        assert told["sandboxId"] == box and told["contentType"] == "text/plain; charset=utf-8"
    text = client.get(f"{path}/logs?tail=2")
    assert text.text == "line 148\nline 149\n" and text.headers["deprecation"] == "true"
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    events = client.get(f"{path}/events?scope=runtime").json()
    assert "Running" in events["content"] and not events["truncated"]
    assert box in client.get(f"{path}/inspect").text
    assert "line 149" in client.get(f"{path}/summary?tail=1&event_limit=1").text


def test_output_since_a_moment_is_told_where_it_is_known(api: Api, client: httpx.Client, box: str) -> None:
    folder = api.settings.data_dir / "socket" / box
    folder.mkdir(parents=True)
    log = folder / "entrypoint.log"
    log.write_text("one\ntwo\n")
    path = f"/v1/sandboxes/{box}/diagnostics/logs"
    assert client.get(f"{path}?since=1h30m&tail=1").text == "two\n", "all of it is younger"
    assert client.get(f"{path}?since=2020-01-31T12:00:00Z").text == "one\ntwo\n"
    assert client.get(path, params={"since": datetime.now(UTC).isoformat()}).text == "", "all of it is older"
    later = time.time() + 60
    os.utime(log, (later, later))
    refused = client.get(path, params={"since": datetime.now(UTC).isoformat()})
    assert (refused.status_code, refused.json()["code"]) == (400, Code.NOT_SUPPORTED)


def test_diagnostics_refusals(client: httpx.Client, box: str) -> None:
    path = f"/v1/sandboxes/{box}/diagnostics"
    for query in ("logs?scope=runtime", "events?scope=container"):
        answer = client.get(f"{path}/{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, Code.DIAGNOSTICS_SCOPE_UNSUPPORTED)
    assert client.get(f"{path}/logs?since=yesterday").json()["code"] == Code.INVALID_PARAMETER
    assert client.get(f"{path}/logs?tail=0").status_code == 422
