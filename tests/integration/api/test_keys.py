# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Several keys on one server: what one owns does not exist for another, on any plane."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from casulo.model.errors import Code
from casulo.model.sandbox import Resources, Spec
from casulo.model.snapshot import Snapshot, SnapshotReason, SnapshotState, SnapshotStatus

from .conftest import StartApi
from .harness import BODY, Api, seen

HEADER = "OPEN-SANDBOX-API-KEY"


@pytest.fixture
def keyed(new_api: StartApi) -> Api:
    """A server of its own: where there are several keys, proxied calls need one."""
    return new_api()


def holder(api: Api, name: str, **request: Any) -> httpx.Client:
    """A client with a new key."""
    with api.client() as admin:
        answer = admin.post("/v1/keys", json={"name": name, **request})
    assert answer.status_code == 201, answer.text
    return api.client(headers={HEADER: answer.json()["key"]})


def created(client: httpx.Client, **more: Any) -> str:
    answer = client.post("/v1/sandboxes", json={**BODY, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def calls(sandbox_id: str) -> Iterator[tuple[str, str, Any]]:
    place = f"/v1/sandboxes/{sandbox_id}"
    yield "GET", place, None
    yield "GET", f"{place}/endpoints/44772", None
    yield "GET", f"{place}/diagnostics/logs", None
    yield "GET", f"{place}/diagnostics/events?scope=all", None
    yield "GET", f"{place}/diagnostics/inspect", None
    yield "GET", f"{place}/diagnostics/summary", None
    yield "GET", f"{place}/proxy/44772/ping", None
    yield "GET", f"{place}/proxy/8080/", None
    yield "PATCH", f"{place}/metadata", {"a": "b"}
    yield "POST", f"{place}/renew-expiration", {"expiresAt": "2999-01-01T00:00:00Z"}
    yield "POST", f"{place}/pause", None
    yield "POST", f"{place}/resume", None
    yield "DELETE", place, None


def test_what_one_key_owns_does_not_exist_for_another(keyed: Api) -> None:
    seen(keyed)
    with holder(keyed, "ann") as ann, holder(keyed, "bob") as bob, keyed.client() as admin:
        hers, his = created(ann), created(bob)
        for method, path, body in calls(hers):
            answer = bob.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, Code.SANDBOX_NOT_FOUND), path
        assert [item["id"] for item in ann.get("/v1/sandboxes").json()["items"]] == [hers]
        assert ann.get("/v1/sandboxes").json()["pagination"]["totalItems"] == 1
        assert {item["id"] for item in admin.get("/v1/sandboxes").json()["items"]} == {hers, his}
        for method, path, body in calls(hers):
            expected = 409 if path.endswith("/resume") else None
            answer = ann.request(method, path, json=body)
            assert answer.is_success or answer.status_code == expected, (path, answer.text)
            if path.endswith("/pause"):
                assert admin.post(path.replace("pause", "resume")).is_success
        assert admin.delete(f"/v1/sandboxes/{his}").status_code == 204


def test_proxied_calls_need_a_key_where_there_are_several(keyed: Api) -> None:
    seen(keyed)
    box = keyed.sandbox()
    path = f"/v1/sandboxes/{box}/proxy/8080/"
    with keyed.client(headers={}) as nobody, keyed.client() as admin:
        assert nobody.get(path).status_code == 200
        with holder(keyed, "ann"):
            answer = nobody.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, Code.MISSING_API_KEY)
            assert admin.get(path).status_code == 200
            address = f"ws://127.0.0.1:{keyed.port}{path}"
            with connect(address) as socket, pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=5)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        admin.delete("/v1/keys/ann")
        assert nobody.get(path).status_code == 200


def test_two_owners_may_use_the_same_idempotency_key(keyed: Api) -> None:
    with holder(keyed, "ann") as ann, holder(keyed, "bob") as bob:
        same = {"Idempotency-Key": "1"}
        ids = {
            client.post("/v1/sandboxes", json=BODY, headers=same).json()["id"] for client in (ann, bob, ann)
        }
        assert len(ids) == 2


def test_scopes(keyed: Api) -> None:
    with (
        holder(keyed, "ann") as ann,
        holder(keyed, "eye", scopes=["read"], sharedWith="ann") as eye,
        holder(keyed, "root", scopes=["admin"]) as root,
    ):
        box = created(ann)
        assert eye.get(f"/v1/sandboxes/{box}").status_code == 200
        refusals = [
            eye.post("/v1/sandboxes", json=BODY),
            eye.delete(f"/v1/sandboxes/{box}"),
            eye.get(f"/v1/sandboxes/{box}/endpoints/44772"),
            eye.get(f"/v1/sandboxes/{box}/proxy/8080/"),
            ann.get("/v1/keys"),
            ann.post("/v1/keys", json={"name": "more"}),
        ]
        for answer in refusals:
            assert (answer.status_code, answer.json()["code"]) == (403, Code.SCOPE_MISSING), answer.url
        assert [key["name"] for key in root.get("/v1/keys").json()["items"]] == ["ann", "eye", "root"]
        assert root.delete(f"/v1/sandboxes/{box}").status_code == 204


def test_quotas_hold_also_for_creates_at_once(keyed: Api) -> None:
    limits = {"sandboxes": 3, "cpu": "2500m", "memory": "2Gi"}
    with holder(keyed, "ann", limits=limits) as ann, keyed.client() as admin:
        first = created(ann)
        refused = ann.post("/v1/sandboxes", json={**BODY, "resourceLimits": {"memory": "1700Mi"}})
        assert (refused.status_code, refused.json()["code"]) == (403, Code.QUOTA_EXCEEDED)
        assert "memory" in refused.json()["message"] and refused.json()["hint"]
        created(ann)
        over = ann.post("/v1/sandboxes", json=BODY)
        assert "cpu" in over.json()["message"]
        created(ann, resourceLimits={"cpu": "500m"})
        assert "sandboxes" in ann.post("/v1/sandboxes", json={**BODY, "resourceLimits": {}}).json()["message"]
        held = admin.get("/v1/keys").json()["items"][0]["usage"]
        assert held["sandboxes"] == 3 and held["cpu"] == "2500m"
        ann.delete(f"/v1/sandboxes/{first}")
        created(ann)


def test_a_key_can_be_rotated_and_removed_and_is_kept_as_a_digest_only(keyed: Api) -> None:
    with holder(keyed, "ann") as ann, keyed.client() as admin:
        old = ann.headers[HEADER]
        new = admin.post("/v1/keys/ann/rotate").json()["key"]
        assert ann.get("/v1/sandboxes").status_code == 401
        ann.headers[HEADER] = new
        assert ann.get("/v1/sandboxes").status_code == 200
        again = admin.post("/v1/keys", json={"name": "ann"})
        assert (again.status_code, again.json()["code"]) == (409, Code.KEY_EXISTS)
        admin.delete("/v1/keys/ann")
        assert ann.get("/v1/sandboxes").json()["code"] == Code.INVALID_API_KEY
        gone = admin.delete("/v1/keys/ann")
        assert (gone.status_code, gone.json()["code"]) == (404, Code.KEY_NOT_FOUND)
    kept = b"".join(path.read_bytes() for path in keyed.settings.data_dir.glob("casulo.db*"))
    assert old.encode() not in kept and new.encode() not in kept


@pytest.mark.parametrize(
    ("request_body", "named"),
    [
        ({"name": "Ann"}, "Ann"),
        ({"name": "a", "scopes": []}, "scope"),
        ({"name": "a", "limits": {"memory": "much"}}, "memory"),
        ({"name": "a", "limits": {"memry": "1Gi"}}, "memry"),
        ({"name": "a", "scopes": ["all"]}, "scopes"),
        ({"name": "a", "sharedWith": "nobody"}, "nobody"),
    ],
)
def test_a_key_that_is_not_what_was_meant_is_refused(api: Api, request_body: Any, named: str) -> None:
    with api.client() as admin:
        answer = admin.post("/v1/keys", json=request_body)
    assert answer.status_code in (400, 404, 422)
    assert named in answer.json()["message"]


def test_snapshots_are_their_owners(keyed: Api) -> None:
    """On rows alone: sockets cannot be kept, and who may see one is decided before a runtime is asked."""
    with holder(keyed, "ann") as ann, holder(keyed, "bob") as bob:
        box = created(ann)
        owner = ann_owner(keyed)
        now = datetime.now(UTC)
        status = SnapshotStatus(SnapshotState.READY, SnapshotReason.READY, "", now)
        spec = Spec("host", ("true",), Resources(1000, 2**29, 512, 2**28))
        kept = Snapshot("kept", box, spec, "socket", status, now, "", owner)
        assert keyed.lifecycle is not None
        rows = keyed.lifecycle.snapshots._rows
        keyed.call(lambda: rows.insert(kept))
        assert ann.get("/v1/snapshots/kept").status_code == 200
        assert ann.get("/v1/snapshots").json()["pagination"]["totalItems"] == 1
        assert bob.get("/v1/snapshots").json()["pagination"]["totalItems"] == 0
        restore = {"snapshotId": "kept", "resourceLimits": {}}
        for answer in (
            bob.get("/v1/snapshots/kept"),
            bob.delete("/v1/snapshots/kept"),
            bob.post("/v1/sandboxes", json=restore),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, Code.SNAPSHOT_NOT_FOUND)
        taken = bob.post(f"/v1/sandboxes/{box}/snapshots", json={})
        assert taken.json()["code"] == Code.SANDBOX_NOT_FOUND
        assert ann.post("/v1/sandboxes", json=restore).status_code == 202


def ann_owner(api: Api) -> str:
    with api.client() as admin:
        return str(admin.get("/v1/keys").json()["items"][0]["owner"])


def test_pools_are_seen_by_all_and_changed_by_admins(keyed: Api) -> None:
    pool = {
        "name": "p",
        "template": {"image": {"uri": "host"}},
        "capacitySpec": {"bufferMin": 0, "bufferMax": 0},
    }
    with holder(keyed, "ann") as ann, keyed.client() as admin:
        assert ann.get("/v1/pools").json() == {"items": []}
        refused = ann.post("/v1/pools", json=pool)
        assert (refused.status_code, refused.json()["code"]) == (403, Code.SCOPE_MISSING)
        cannot = admin.post("/v1/pools", json=pool)  # nothing can be parked in a socket
        assert (cannot.status_code, cannot.json()["code"]) == (501, Code.POOL_NOT_SUPPORTED)
        spoiled = admin.post("/v1/pools", json={**pool, "capacitySpec": {"bufferMin": 3, "bufferMax": 1}})
        assert (spoiled.status_code, "bufferMin" in spoiled.json()["message"]) == (400, True)
