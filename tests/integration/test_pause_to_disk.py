# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes that a pause puts on disk: nothing of them runs, and they come back as they were."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from casulo import linux
from casulo.network.egress.calls import call
from casulo.network.instance import instance_of
from support.internet.boxes import process_of
from support.processes import lives
from support.server import Server

COUNTER = "n=0; while :; do n=$((n+1)); echo $n > /tmp/m; mv /tmp/m /tmp/n; sleep 0.05; done"
BODY = {
    "image": {"uri": "host"},
    "entrypoint": ["sh", "-c", COUNTER],
    "resourceLimits": {},
    "timeout": 900,
    "env": {"WHO": "me"},
    "extensions": {"casulo.pause": "disk"},
}


@pytest.fixture(scope="module")
def server(new_module_server) -> Server:
    """One that every test here may kill and start again."""
    return new_module_server("gvisor")


@pytest.fixture
def made(server: Server) -> Iterator[dict]:
    """A sandbox that counts."""
    created = _create(server)
    _until(lambda: _count(server, created["id"]) > 2)
    yield created
    if server.process is None:
        server.start()
    server.request("DELETE", f"/v1/sandboxes/{created['id']}")


def test_it_comes_back_as_it_was_also_after_a_restart(server: Server, made: dict) -> None:
    sandbox_id = made["id"]
    before, count = _get(server, sandbox_id), _count(server, sandbox_id)
    variables = _told(server, sandbox_id, "echo $WHO $HOME $PATH $OPENSANDBOX_ID")
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/pause").status_code == 202
    assert _state(server, sandbox_id) == "Paused"
    assert not _processes(server, sandbox_id), "its memory is to be given back"
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/pause").status_code == 409
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/snapshots", json={}).status_code == 409
    server.stop()
    server.start()
    assert _state(server, sandbox_id) == "Paused"
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/resume").status_code == 202
    after = _get(server, sandbox_id)
    assert after["status"]["state"] == "Running"
    assert after["expiresAt"] == before["expiresAt"]
    assert _endpoint(server, sandbox_id) == made["casulo"], "address and token are what they were"
    assert variables.startswith("me ")
    assert _told(server, sandbox_id, "echo $WHO $HOME $PATH $OPENSANDBOX_ID") == variables
    _until(lambda: _count(server, sandbox_id) > count)
    _run(server, sandbox_id, "pkill -9 -f '[n]=0; while'")
    _until(lambda: _state(server, sandbox_id) == "Failed")
    assert "SIGKILL" in _get(server, sandbox_id)["status"]["message"], "its end is still written down"


def test_open_connections_are_a_conflict_and_it_goes_on(server: Server, made: dict) -> None:
    sandbox_id = made["id"]
    _start(server, sandbox_id, "exec python3 -m http.server 8000")
    _until(lambda: _run(server, sandbox_id, "grep -qi ':1F40 ' /proc/net/tcp /proc/net/tcp6") == 0)
    answer = server.request("POST", f"/v1/sandboxes/{sandbox_id}/pause")
    assert answer.status_code == 409, answer.text
    assert "TCP" in answer.text and "end its servers" in answer.text
    assert _state(server, sandbox_id) == "Running"
    before = _count(server, sandbox_id)
    _until(lambda: _count(server, sandbox_id) > before)


def test_it_can_be_deleted_and_expires_on_disk(server: Server) -> None:
    deleted, expired = _create(server)["id"], _create(server)["id"]
    for sandbox_id in (deleted, expired):
        assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/pause").status_code == 202
    assert server.request("DELETE", f"/v1/sandboxes/{deleted}").status_code == 204
    assert not (server.data_dir / "sandboxes" / deleted).exists()
    soon = {"expiresAt": (datetime.now(UTC) + timedelta(seconds=2)).isoformat()}
    renewed = server.request("POST", f"/v1/sandboxes/{expired}/renew-expiration", json=soon)
    assert renewed.status_code == 200, renewed.text
    _until(lambda: not (server.data_dir / "sandboxes" / expired).exists())
    assert server.request("GET", f"/v1/sandboxes/{expired}").status_code == 404


def test_b051_files_are_the_same_after_each_of_five_pauses(server: Server, made: dict) -> None:
    listing = (
        "cd /srv/t && find . -printf '%p %y %m %U %s\\n' | sort && find . -type f | sort | xargs sha256sum"
    )
    _told(server, made["id"], "mkdir -p /srv/t/d0 && echo 0 > /srv/t/f0")
    for i in range(1, 6):
        change = (
            f"cd /srv/t && echo {i} > f{i} && echo changed {i} > f0 && mv d{i - 1} d{i} && touch d{i}/in{i}"
            f" && chmod 0{i}40 f{i} && chown {1000 + i} f{i}" + (f" && rm f{i - 1}" if i > 1 else "")
        )
        assert _run(server, made["id"], change) == 0
        before = _told(server, made["id"], listing)
        assert "changed" not in before and f"f{i} f {i}40 {1000 + i}" in before, before
        for step in ("pause", "resume"):
            assert server.request("POST", f"/v1/sandboxes/{made['id']}/{step}").status_code == 202
        assert _told(server, made["id"], listing) == before


TICKS = """
import os, signal
n = 0
def tick(*_):
    global n
    n += 1
    open("/tmp/ticks.new", "w").write(str(n))
    os.rename("/tmp/ticks.new", "/tmp/ticks")
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
while True:
    signal.pause()
"""
HANDSHAKE = """
import ssl
server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile="/srv/cert.pem")
server.load_cert_chain("/srv/cert.pem", "/srv/key.pem")
a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
ends = [client.wrap_bio(a, b, server_hostname="issued.test"), server.wrap_bio(b, a, server_side=True)]
for _ in range(8):
    for end in ends:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
print(ends[0].version())
"""


def test_b055_the_clock_is_right_after_it_stood_still(server: Server, made: dict, tmp_path: Path) -> None:
    """The case asks for 120 s, which CASULO_STILL_SECONDS=120 gives it; what matters shows after 5."""
    sandbox_id, still = made["id"], float(os.environ.get("CASULO_STILL_SECONDS", "5"))
    _start(server, sandbox_id, f"exec python3 -c '{TICKS}'")
    _until(lambda: int(_told(server, sandbox_id, "cat /tmp/ticks 2>/dev/null || echo 0") or 0) > 0)
    ticks, begun = int(_told(server, sandbox_id, "cat /tmp/ticks")), time.monotonic()
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/pause").status_code == 202
    time.sleep(still)
    key, certificate = _issue(tmp_path)
    assert server.request("POST", f"/v1/sandboxes/{sandbox_id}/resume").status_code == 202
    earliest = time.time()
    inside = float(_told(server, sandbox_id, "date +%s.%N").removesuffix("\\n"))
    assert earliest - 1 < inside < time.time() + 1
    for path, content in (("/srv/key.pem", key), ("/srv/cert.pem", certificate)):
        assert _run(server, sandbox_id, f"cat > {path} <<'END'\n{content}END\n") == 0
    assert _told(server, sandbox_id, f"python3 -c '{HANDSHAKE}'").startswith("TLSv1"), "issued meanwhile"
    fired, ran = int(_told(server, sandbox_id, "cat /tmp/ticks")) - ticks, time.monotonic() - begun - still
    assert fired < ran / 0.1 + 10, "timers must not make up for the time that it stood still"
    assert _run(server, sandbox_id, "true") == 0


def _issue(folder: Path) -> tuple[str, str]:
    """A certificate that is valid from now on, and its key."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=issued.test",
    ]
    files = ["-addext", "subjectAltName=DNS:issued.test", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *files], check=True, capture_output=True)
    return key.read_text(), certificate.read_text()


def test_it_outlives_the_loss_of_everything_that_a_reboot_takes(server: Server, made: dict) -> None:
    count = _count(server, made["id"])
    policy = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "one.test"}]}
    told = server.request("PUT", f"/v1/sandboxes/{made['id']}/networkpolicy", json=policy)
    assert told.status_code == 200, told.text
    assert server.request("POST", f"/v1/sandboxes/{made['id']}/pause").status_code == 202
    server.stop()
    run = Path("/run/casulo") / instance_of(server.data_dir)
    os.kill(int(call(Path(process_of(server)["socket"]), "GET", "/health")["pid"]), signal.SIGKILL)
    for mount in sorted(linux.mounts_below(str(run)), reverse=True):
        linux.unmount(mount)
    shutil.rmtree(run)
    groups = [
        path.parent for path in Path("/sys/fs/cgroup").glob(f"**/casulo/*/{made['id']}/**/cgroup.procs")
    ]
    for group in sorted(groups, key=lambda path: -len(path.parts)):
        group.rmdir()
    server.start()
    assert _state(server, made["id"]) == "Paused"
    resumed = server.request("POST", f"/v1/sandboxes/{made['id']}/resume")
    assert resumed.status_code == 202, resumed.text
    assert _endpoint(server, made["id"]) == made["casulo"]
    _until(lambda: _count(server, made["id"]) > count)
    held = call(Path(process_of(server)["socket"]), "GET", f"/sandboxes/{made['id']}")
    assert held["policy"]["defaultAction"] == "deny", held


@pytest.mark.parametrize("moment", ["pausing", "memory.new/checkpoint.img", "memory"])
def test_a_server_killed_while_it_pauses(server: Server, made: dict, moment: str) -> None:
    folder = server.data_dir / "sandboxes" / made["id"]
    count = _count(server, made["id"])
    _killed_at(server, "pause", made["id"], (folder / moment).exists)
    _goes_on(server, made["id"], count)


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.45])
def test_a_server_killed_while_it_resumes(server: Server, made: dict, delay: float) -> None:
    folder = server.data_dir / "sandboxes" / made["id"]
    count = _count(server, made["id"])
    assert server.request("POST", f"/v1/sandboxes/{made['id']}/pause").status_code == 202
    _killed_at(server, "resume", made["id"], lambda: _seen(folder / "pausing", delay))
    _goes_on(server, made["id"], count)


def test_a_server_killed_while_it_takes_a_snapshot_with_memory(server: Server) -> None:
    created = _create(server, extensions={"casulo.snapshot.memory": "true"})
    sandbox_id = created["id"]
    folder = server.data_dir / "sandboxes" / sandbox_id
    _until(lambda: _count(server, sandbox_id) > 2)
    for moment in ("pausing", "memory.new", "memory"):
        _killed_at(server, "snapshots", sandbox_id, (folder / moment).exists)
        _until(lambda: _state(server, sandbox_id) == "Running")
        count = _count(server, sandbox_id)
        _until(lambda: _count(server, sandbox_id) > count)  # noqa: B023
    assert server.request("DELETE", f"/v1/sandboxes/{sandbox_id}").status_code == 204
    states = [each["status"]["state"] for each in server.request("GET", "/v1/snapshots").json()["items"]]
    assert "Creating" not in states


def _goes_on(server: Server, sandbox_id: str, count: int) -> None:
    _until(lambda: _state(server, sandbox_id) in ("Running", "Paused"))
    if _state(server, sandbox_id) == "Paused":
        assert not _processes(server, sandbox_id)
        answer = server.request("POST", f"/v1/sandboxes/{sandbox_id}/resume")
        assert answer.status_code == 202, answer.text
    _until(lambda: _count(server, sandbox_id) > count)
    counters = _told(server, sandbox_id, "pgrep -fc '[n]=0; while'")
    assert counters == "1", "it must not go on twice"


def _killed_at(server: Server, what: str, sandbox_id: str, reached: Callable[[], bool]) -> None:
    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):  # the server is being killed, which is the point
            server.request(
                "POST", f"/v1/sandboxes/{sandbox_id}/{what}", **({"json": {}} if what == "snapshots" else {})
            )

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 30
    while not reached() and asking.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    server.crash()
    asking.join()
    server.start()


def _seen(path: Path, delay: float) -> bool:
    if path.exists():
        time.sleep(delay)
        return True
    return False


def _create(server: Server, **changes: object) -> dict:
    answer = server.request("POST", "/v1/sandboxes", json={**BODY, **changes})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def _get(server: Server, sandbox_id: str) -> dict:
    return dict(server.request("GET", f"/v1/sandboxes/{sandbox_id}").json())


def _state(server: Server, sandbox_id: str) -> str:
    return str(_get(server, sandbox_id)["status"]["state"])


def _endpoint(server: Server, sandbox_id: str) -> dict:
    return dict(server.request("GET", f"/v1/sandboxes/{sandbox_id}/endpoints/44772").json())


def _post(server: Server, sandbox_id: str, body: dict) -> str:
    told = _endpoint(server, sandbox_id)
    url, headers = f"http://{told['endpoint']}/command", told["headers"]
    return httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60).text


def _told(server: Server, sandbox_id: str, command: str) -> str:
    return "".join(
        re.findall(r'"type":"stdout".*?"text":"(.*?)"', _post(server, sandbox_id, {"command": command}))
    )


def _run(server: Server, sandbox_id: str, command: str) -> int:
    try:
        return 0 if "execution_complete" in _post(server, sandbox_id, {"command": command}) else 1
    except httpx.TransportError:
        return 2


def _start(server: Server, sandbox_id: str, command: str) -> None:
    _post(server, sandbox_id, {"command": command, "background": True})


def _count(server: Server, sandbox_id: str) -> int:
    return int(_told(server, sandbox_id, "cat /tmp/n 2>/dev/null || echo 0") or 0)


def _processes(server: Server, sandbox_id: str) -> list[str]:
    """Host processes in any control group of the sandbox, but for those that ended and hold nothing."""
    found = []
    for folder in Path("/sys/fs/cgroup").glob(f"**/casulo/*/{sandbox_id}/cgroup.procs"):
        found += folder.read_text().split()
    return [pid for pid in found if lives(pid)]


def _until(holds: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
