# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Every route of the credential vault, over HTTP, with all that is refused there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from casulo.api.tokens import AUTH_HEADER
from integration.api.conftest import StartApi
from integration.api.harness import BODY, KEY, Api, raw, start_api
from support.memory_egress import MemoryEgress

VALUE = "s3cr3t-value"
POLICY = {"egress": [{"action": "allow", "target": "api.example.com"}]}
BINDING = {
    "name": "b/1",
    "match": {"hosts": ["api.example.com"]},
    "auth": {"type": "bearer", "credential": "key"},
}
VAULT = {"credentials": [{"name": "key", "source": {"value": VALUE}}], "bindings": [BINDING]}


def with_egress(api: Api) -> Api:
    api.runtime.egress = MemoryEgress()  # type: ignore[attr-defined]
    api.runtime.features = frozenset({"pause", "egress", "vault"})
    return api


@pytest.fixture(scope="module")
def vaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    started = with_egress(start_api(tmp_path_factory.mktemp("vaults")))
    yield started
    started.stop()


class Route:
    """The vault of a new sandbox, as a client of its port 18080 reaches it."""

    def __init__(self, api: Api, **more: Any) -> None:
        self.api = api
        self.id = api.sandbox(**{"networkPolicy": POLICY, "credentialProxy": {"enabled": True}, **more})
        with api.client() as client:
            found = client.get(f"/v1/sandboxes/{self.id}/endpoints/18080").json()
        self.url, self.headers = f"http://{found['endpoint']}", found["headers"]

    def __call__(self, method: str, path: str = "", body: Any = None, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {**self.headers, **options.pop("headers", {})}
        answer = self.send(method, f"/credential-vault{path}", content=content, headers=headers, **options)
        assert VALUE not in answer.text + str(answer.headers)
        return answer

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(
            trust_env=False, timeout=10, verify=False
        ) as client:  # plain HTTP, so nothing to load
            return client.request(method, f"{self.url}{path}", **options)


@pytest.fixture
def route(vaults: Api) -> Route:
    return Route(vaults)


def test_the_whole_of_it(route: Route) -> None:
    assert (
        route("GET").status_code == route("DELETE").status_code == route("PATCH", body={}).status_code == 404
    )
    made = route("POST", body=VAULT)
    assert made.status_code == 201 and made.json() == route("GET").json()
    state = made.json()
    assert state["revision"] == 1
    assert state["credentials"] == [{"name": "key", "sourceType": "inline", "revision": 1}]
    assert state["bindings"][0]["auth"] == {"type": "bearer"}
    assert route("POST", body=VAULT).status_code == 409
    assert route("GET", "/credentials").json() == {"revision": 1, "credentials": state["credentials"]}
    assert route("GET", "/bindings").json() == {"revision": 1, "bindings": state["bindings"]}
    assert route("GET", "/credentials/key").json() == state["credentials"][0]
    assert route("GET", "/bindings/b%2F1").json() == state["bindings"][0]
    assert route("GET", "/bindings/b/1").status_code == route("GET", "/bindings/none").status_code == 404
    changed = route("PATCH", body={"expectedRevision": 1, "bindings": {"delete": ["b/1"]}})
    assert changed.status_code == 200 and changed.json()["revision"] == 2 and changed.json()["bindings"] == []
    conflict = route("PATCH", body={"expectedRevision": 1})
    assert conflict.status_code == 409 and conflict.headers["content-type"].startswith("text/plain")
    gone = route("DELETE")
    assert (gone.status_code, gone.content) == (204, b"")
    assert route("GET", "/credentials").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "", 405),
        ("HEAD", "", 405),
        ("POST", "/credentials", 405),
        ("DELETE", "/credentials/key", 405),
        ("PATCH", "/bindings", 405),
        ("GET", "/_active", 403),
        ("POST", "/_active", 403),
        ("DELETE", "/_active", 403),
        ("GET", "/_active/x", 404),
        ("GET", "/other", 404),
        ("GET", "/", 404),
        ("GET", "/credentials/", 404),
        ("GET", "/credentials/a/b", 404),
    ],
)
def test_what_is_not_there(route: Route, method: str, path: str, status: int) -> None:
    answer = route(method, path)
    assert answer.status_code == status and answer.headers["content-type"].startswith("text/plain")
    assert status != 405 or answer.headers["allow"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"[]",
        b"null",
        b'{"a": 1}',
        b'{"credentials": [], "credentials": []}',
        b"\xff",
        b'{"credentials": NaN}',
        b"[" * 100_000,
        b'{"expectedRevision": ' + b"9" * 5000 + b"}",
        b'{"credentials": [{"name": "k", "source": {"value": "s3cr3t-value", "x": 1}}]}',
        b'{"credentials": [{"name": "k", "source": {"value": "s3cr3t-value}}]}',
    ],
)
def test_bodies_that_are_none(route: Route, content: bytes) -> None:
    for method in ("POST", "PATCH"):
        assert route(method, body=content).status_code == 400
    assert route("GET").status_code == 404


def test_large_bodies(route: Route) -> None:
    padding = b" " * (1 << 20)
    assert route("POST", body=padding + b"{}").status_code == 413
    whole = json.dumps(VAULT).encode()
    assert route("POST", body=padding[: (1 << 20) - len(whole)] + whole).status_code == 201


def test_the_token_of_the_endpoint_is_needed(route: Route) -> None:
    for method in ("GET", "POST", "PATCH", "DELETE"):
        assert route(method, body=VAULT, headers={AUTH_HEADER: "wrong"}).status_code == 401
        assert route(method, "/_active", headers={AUTH_HEADER: ""}).status_code == 401


def test_sandboxes_without_it(vaults: Api) -> None:
    route = Route(vaults, credentialProxy={"enabled": False})
    answer = route("POST", body=VAULT)
    assert answer.status_code == 412 and "credentialProxy" in answer.text
    assert route("PATCH", body={}).status_code == route("DELETE").status_code == 412
    assert route("GET").status_code == 404


def test_a_host_that_the_policy_does_not_allow(route: Route, vaults: Api) -> None:
    other = {**BINDING, "match": {"hosts": ["other.example.com"]}}
    assert route("POST", body={**VAULT, "bindings": [other]}).status_code == 400
    assert route("POST", body=VAULT).status_code == 201
    for method, body in (("PUT", {}), ("DELETE", ["api.example.com"])):
        assert route.send(method, "/policy", json=body, headers=route.headers).status_code == 400
    with vaults.client() as client:
        answer = client.put(f"/v1/sandboxes/{route.id}/networkpolicy", json={})
        assert (answer.status_code, answer.json()["code"]) == (400, "VAULT::INVALID")
        assert client.get(f"/v1/sandboxes/{route.id}/networkpolicy").json()["mode"] == "enforcing"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http"}, 426),
        ({"X-Forwarded-For": "192.0.2.1"}, 426),
        ({"Forwarded": "for=192.0.2.1;proto=https"}, 426),
        ({"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}, 201),
        ({"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https, http"}, 426),
    ],
)
def test_values_come_over_tls_or_from_this_machine(
    route: Route, headers: dict[str, str], status: int
) -> None:
    answer = route("POST", body=VAULT, headers=headers)
    assert answer.status_code == status, answer.text
    assert route("GET", headers=headers).status_code == (200 if status == 201 else 404)


def test_the_rule_can_be_turned_off(new_api: StartApi) -> None:
    route = Route(with_egress(new_api(vault={"require_tls": False})))
    assert route("POST", body=VAULT, headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 201


def test_sources_of_the_server_need_its_key(new_api: StartApi) -> None:
    route = Route(with_egress(new_api(vault={"env": ["UNSET"]})))
    vault = {"credentials": [{"name": "key", "source": {"type": "env", "name": "UNSET"}}]}
    assert "need the server's API key" in (refused := route("POST", body=vault)).text
    assert refused.status_code == 403
    with_key = route("POST", body=vault, headers={"OPEN-SANDBOX-API-KEY": KEY})
    assert with_key.status_code == 400 and "is not set" in with_key.text


def test_the_audit_log_has_names_and_nothing_else(route: Route, vaults: Api) -> None:
    route("POST", body=VAULT)
    replaced = {"replace": [{"name": "key", "source": {"value": "other-s3cr3t"}}]}
    route("PATCH", body={"credentials": replaced, "bindings": {"delete": ["b/1"]}})
    route("DELETE")
    text = (vaults.settings.data_dir / "audit.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if route.id in line["path"]]
    assert [(line["method"], line["status"]) for line in lines] == [
        ("POST", 201),
        ("PATCH", 200),
        ("DELETE", 204),
    ]
    assert lines[0]["vault"] == {"credentials": {"add": ["key"]}, "bindings": {"add": ["b/1"]}}
    assert lines[1]["vault"] == {"credentials": {"replace": ["key"]}, "bindings": {"delete": ["b/1"]}}
    assert VALUE not in text and "other-s3cr3t" not in text


def test_create_says_when_it_is_not_possible(vaults: Api, api: Api) -> None:
    wanted = {**BODY, "credentialProxy": {"enabled": True}}
    with vaults.client() as client:
        assert client.post("/v1/sandboxes", json=wanted).status_code == 422
    with api.client() as client:
        answer = client.post("/v1/sandboxes", json={**wanted, "networkPolicy": POLICY})
    assert answer.status_code == 400 and "networkPolicy" in answer.json()["message"]


def test_capabilities_tell_of_it(vaults: Api) -> None:
    with vaults.client() as client:
        told = client.get("/v1/capabilities").json()
    assert "vault" in told["runtimes"][0]["isolations"][0]["features"]


def test_a_torn_body_leaves_nothing(route: Route, vaults: Api) -> None:
    head = (
        f"POST /v1/sandboxes/{route.id}/proxy/18080/credential-vault HTTP/1.1\r\nHost: x\r\n"
        f"OPEN-SANDBOX-API-KEY: {KEY}\r\n{AUTH_HEADER}: {route.headers[AUTH_HEADER]}\r\nContent-Length: 1000"
    )
    with vaults.connect() as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + json.dumps(VAULT).encode())
    assert b"404" in raw(vaults, head.replace("POST", "GET").replace("1000", "0").encode())
