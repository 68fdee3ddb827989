# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the server tells of itself: metrics, the audit log, webhooks, and ids in its log."""

from __future__ import annotations

import errno
import http.server
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import EventDict

from casulo.api import audit
from casulo.api.webhooks import signature
from casulo.model.errors import Code, RuntimeFailure

from .conftest import StartApi
from .harness import BODY, KEY, Api, eventually, seen

SECRET = "a-secret-of-the-receiver"


@dataclass
class Receiver:
    """Takes webhooks; the first `failures` answers are 503."""

    failures: int = 0
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refuse = len(made.got) < made.failures
            made.got.append((dict(self.headers), body))
            self.send_response(503 if refuse else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/hook"
    yield made
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_metrics_count_what_happened_and_need_an_admin_key(api: Api) -> None:
    box = api.sandbox()
    with api.client() as client:
        api.runtime.failure = RuntimeFailure("no", code=Code.SANDBOX_START_FAILED)
        client.post("/v1/sandboxes", json=BODY)
        api.runtime.failure = None
        text = client.get("/metrics").text
        assert 'casulo_starts_total{outcome="running",runtime="socket"}' in text
        assert 'casulo_starts_total{outcome="SANDBOX::START_FAILED",runtime="socket"} 1.0' in text
        assert 'casulo_sandboxes{runtime="socket",state="Running"}' in text
        for stage in ("record", "image", "queue", "runtime", "commit"):
            assert f'casulo_start_stage_seconds_count{{stage="{stage}"}}' in text
        client.delete(f"/v1/sandboxes/{box}")
        assert 'casulo_removals_total{reason="DELETING"' in client.get("/metrics").text
    with api.client(headers={"Authorization": f"Bearer {KEY}"}) as collector:
        assert collector.get("/metrics").status_code == 200
        assert collector.get("/v1/sandboxes").status_code == 401
    with api.client(headers={}) as nobody:
        assert nobody.get("/metrics").status_code == 401


def test_who_changed_what_is_recorded_and_cannot_be_rewritten(new_api: StartApi) -> None:
    api = new_api()
    seen(api)
    with api.client(headers={"OPEN-SANDBOX-API-KEY": KEY, "X-Request-ID": "r-1"}) as client:
        made = client.post("/v1/sandboxes", json=BODY).headers["Location"]
        client.get(made)
        client.post(f"{made}/proxy/8080/inside", content=b"x")
        client.post("/v1/keys", json={"name": "ann"})
        client.headers["OPEN-SANDBOX-API-KEY"] = "wrong"
        client.delete(made)
    path = api.settings.data_dir / audit.FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [(line["method"], line["path"], line["status"], line["caller"]) for line in lines]
    assert told == [
        ("POST", "/v1/sandboxes", 202, "the server's own key"),
        ("POST", "/v1/keys", 201, "the server's own key"),
        ("DELETE", made, 401, "nobody"),
    ]
    assert (lines[0]["made"], lines[0]["request_id"], lines[0]["from"]) == (made, "r-1", "127.0.0.1")
    assert KEY not in path.read_text()
    assert audit.verify(path) == audit.Verdict(3, lines[-1]["hash"])


def test_every_way_to_tamper_shows(tmp_path: Path) -> None:
    path = tmp_path / audit.FILE
    log = audit.AuditLog(path)
    for number in range(5):
        log.write({"path": f"/{number}"})
    log.close()
    whole = path.read_bytes().splitlines(keepends=True)
    changes = {
        "changed": [*whole[:2], whole[2].replace(b"/2", b"/x"), *whole[3:]],
        "removed": [*whole[:2], *whole[3:]],
        "swapped": [whole[1], whole[0], *whole[2:]],
        "repeated": [*whole[:3], whole[2], *whole[3:]],
        "no record": [*whole[:3], b"{}\n", *whole[3:]],
    }
    for name, lines in changes.items():
        path.write_bytes(b"".join(lines))
        assert audit.verify(path).fault, name
    path.write_bytes(b"".join(whole))
    assert audit.verify(path).fault == ""


def test_a_torn_end_is_cut_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / audit.FILE
    log = audit.AuditLog(path)
    log.write({"path": "/1"})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"serial": 2, "pa')
    again = audit.AuditLog(path)
    again.write({"path": "/2"})
    again.close()
    assert audit.verify(path).lines == 2 and not audit.verify(path).fault


def test_what_a_full_disk_refused_leaves_the_chain_whole_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / audit.FILE
    log = audit.AuditLog(path)
    log.write({"path": "/1"})
    for room in (0, 30):  # nothing of a record finds room, and then a part of one
        with monkeypatch.context() as full:
            full.setattr(audit.os, "write", lambda file, line, room=room: _partly(file, line, room))
            with pytest.raises(OSError):
                log.write({"path": "/lost"})
    log.write({"path": "/2"})
    log.write({"path": "/3"})
    log.close()
    found = audit.verify(path)
    assert (found.fault, found.lines, found.lost) == ("", 3, 2)


def _partly(file: int, line: bytes, room: int) -> int:
    if room == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return os.pwrite(file, line[:room], 0)  # the file only appends


def test_webhooks_are_signed_and_tried_again(new_api: StartApi, receiver: Receiver) -> None:
    receiver.failures = 1
    hook = {"url": receiver.url, "secret": SECRET, "events": ["sandbox.running", "sandbox.removed"]}
    api = new_api(webhooks=[hook])
    box = api.sandbox(metadata={"team": "a"})
    with api.client() as client:
        client.post(f"/v1/sandboxes/{box}/pause")
        client.delete(f"/v1/sandboxes/{box}")
    assert eventually(lambda: len(receiver.got) == 3)
    bodies = [json.loads(body) for _, body in receiver.got]
    assert [body["type"] for body in bodies] == ["sandbox.running", "sandbox.running", "sandbox.removed"]
    assert bodies[0]["id"] == bodies[1]["id"] == receiver.got[0][0]["Casulo-Delivery"]
    assert bodies[0]["sandbox"]["id"] == box and bodies[0]["sandbox"]["metadata"] == {"team": "a"}
    for headers, body in receiver.got:
        moment = int(headers["Casulo-Signature"].split(",")[0].removeprefix("t="))
        assert headers["Casulo-Signature"] == signature(SECRET, moment, body)


def test_what_a_request_caused_is_logged_under_its_id(api: Api, log: list[EventDict]) -> None:
    with api.client(headers={"OPEN-SANDBOX-API-KEY": KEY, "X-Request-ID": "find-me"}) as client:
        box = client.post("/v1/sandboxes", json=BODY).json()["id"]
    found = [line for line in log if line["event"] == "sandbox.running" and line["sandbox"] == box]
    assert [line["request_id"] for line in found] == ["find-me"]
