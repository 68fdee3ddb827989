# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Buckets, with a program `ossfs` that shows a directory instead: what it is told, and what is left of it.

No object storage takes part. That the real program does with these words what is expected is not shown here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from casulo.client import Client, Connection, Sandbox
from support.machine import cannot_run
from support.server import Server

KEY_ID, KEY_SECRET = "AKIDofThisTest", "SecretOfThisTest"
ENGINES = {"crun": "", "runsc": 'isolation = "gvisor"\n'}

_OSSFS = """#!/bin/sh
# Shows <store>/BUCKET at the mount point until that is unmounted or this is told to end.
bucket=$1 point=$2 store={store}
printf '%s\\n' "$@" >$store/told
for word; do case $word in
    -opasswd_file=*) cp -p "${{word#*=}}" $store/key-seen ;;
    -ouid=*) uid=${{word#*=}} ;;
esac; done
if ! [ -d $store/$bucket ]; then echo "no bucket $bucket for $(cat $store/key-seen)"; exit 1; fi
if [ $bucket = slow ]; then sleep 1; fi
chown -R $uid:$uid $store/$bucket
mount --bind $store/$bucket "$point" || exit 1
trap 'umount -l "$point"; exit' TERM
while mountpoint -q "$point"; do sleep 0.1; done
"""


@dataclass
class Stand:
    """A server in whose PATH is our `ossfs`, and what that shows."""

    server: Server
    store: Path

    def create(self, bucket: str = "data", **volume: Any) -> Any:
        key = {"accessKeyId": KEY_ID, "accessKeySecret": KEY_SECRET}
        source = {"bucket": bucket, "endpoint": "oss.example.com", "options": ["retries=3"], **key}
        volumes = [{"name": "v", "mountPath": "/v", "ossfs": source, **volume}]
        body = {"image": {"uri": "host"}, "resourceLimits": {}, "timeout": 600, "volumes": volumes}
        body["entrypoint"] = ["sleep", "600"]
        return self.server.request("POST", "/v1/sandboxes", json=body)

    def said(self, sandbox_id: str, script: str) -> str:
        """What a shell in the sandbox prints."""
        with Client(Connection(self.server.url, self.server.api_key)) as client:
            return Sandbox.connect(sandbox_id, client=client).commands.run(script).stdout

    def mounts(self) -> list[str]:
        """Where the host has the bucket mounted, and processes that show one."""
        found = [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.store) in line
        ]
        return [*found, *_processes(str(self.store.parent / "bin" / "ossfs"))]

    def await_gone(self) -> None:
        deadline = time.monotonic() + 60
        while self.mounts() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.mounts() == []


@pytest.fixture(params=ENGINES)
def stand(
    request: pytest.FixtureRequest,
    new_server: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stand:
    if shutil.which(request.param) is None:
        cannot_run(f"{request.param} is not installed")
    store, programs = tmp_path / "store", tmp_path / "bin"
    (store / "data" / "sub").mkdir(parents=True)
    (store / "slow").mkdir()
    (store / "data" / "top").write_text("top\n")
    (store / "data" / "sub" / "file").write_text("below\n")
    (store / "data" / "out").symlink_to("/etc")
    programs.mkdir()
    (programs / "ossfs").write_text(_OSSFS.format(store=store))
    (programs / "ossfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return Stand(new_server("local", local=ENGINES[request.param]), store)


def test_shown_kept_and_taken_away(stand: Stand) -> None:
    made = stand.create()
    assert made.status_code == 202, made.text
    box = made.json()["id"]
    assert stand.said(box, "cat /v/top; echo new > /v/made; stat -c %u:%a /v/made") == "top\n0:644\n"
    assert (stand.store / "data" / "made").read_text() == "new\n"
    told = (stand.store / "told").read_text().split("\n")
    assert told[0] == "data" and "-f" in told and "-ourl=https://oss.example.com" in told
    assert (stand.store / "key-seen").read_text() == f"data:{KEY_ID}:{KEY_SECRET}\n"
    assert (stand.store / "key-seen").stat().st_mode & 0o777 == 0o600
    key = next(Path(word.partition("=")[2]) for word in told if word.startswith("-opasswd_file="))
    _assert_no_secret(stand, box)
    stand.server.crash()
    stand.server.start()
    assert stand.said(box, "cat /v/made") == "new\n"
    assert key.exists()
    assert stand.server.request("DELETE", f"/v1/sandboxes/{box}").status_code == 204
    stand.await_gone()
    assert not key.parent.parent.exists()
    assert (stand.store / "data" / "top").read_text() == "top\n", "what is in a bucket is nobody's to delete"
    _assert_no_secret(stand, box)


def test_part_of_a_bucket_and_read_only(stand: Stand) -> None:
    box = stand.create(subPath="sub", readOnly=True).json()["id"]
    script = "cat /v/file; ls /v; touch /v/x 2>/dev/null || echo denied"
    assert stand.said(box, script) == "below\nfile\ndenied\n"
    stand.server.request("DELETE", f"/v1/sandboxes/{box}")
    refused = stand.create(subPath="out")
    assert refused.json()["code"] == "VOLUME::INVALID_SUB_PATH", refused.text
    stand.await_gone()


def test_failure_says_why_without_the_key(stand: Stand) -> None:
    failed = stand.create(bucket="absent")
    assert failed.json()["code"] == "VOLUME::OSSFS_MOUNT_FAILED", failed.text
    assert "no bucket absent for absent:(hidden):(hidden)" in failed.text
    stand.await_gone()
    assert stand.server.request("GET", "/v1/sandboxes").json()["items"] == []


def test_end_of_the_process_is_told(stand: Stand) -> None:
    box = stand.create().json()["id"]
    for process in _processes(str(stand.store.parent / "bin" / "ossfs")):
        os.kill(int(process), 15)
    deadline = time.monotonic() + 30
    while "volume.ossfs_ended" not in stand.server.output and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "volume.ossfs_ended" in stand.server.output
    stand.server.request("DELETE", f"/v1/sandboxes/{box}")
    stand.await_gone()


def test_killed_while_it_is_mounted(stand: Stand) -> None:
    """The key is gone with the request, so the start is not done again, and nothing of it stays."""
    making = threading.Thread(target=_create_quietly, args=(stand, "slow"))
    making.start()
    deadline = time.monotonic() + 30
    while not (stand.store / "told").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    stand.server.crash()
    making.join()
    stand.server.start()
    deadline = time.monotonic() + 60
    while stand.server.request("GET", "/v1/sandboxes").json()["items"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stand.server.request("GET", "/v1/sandboxes").json()["items"] == []
    stand.await_gone()
    point = next(w for w in (stand.store / "told").read_text().split("\n") if w.endswith("/mount"))
    assert not Path(point).parent.parent.exists()


def _create_quietly(stand: Stand, bucket: str) -> None:
    with contextlib.suppress(httpx.HTTPError):  # the server is killed meanwhile
        stand.create(bucket)


def _processes(program: str) -> list[str]:
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", number, "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if program.encode() in words:
            found.append(number)
    return found


def _assert_no_secret(stand: Stand, box: str) -> None:
    """Nowhere in the server's data (database, logs, the sandbox's files), and in no process's words."""
    secret = KEY_SECRET.encode()
    for folder, _, names in os.walk(stand.server.data_dir):
        for path in (Path(folder, name) for name in names):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 50_000_000:
                assert secret not in path.read_bytes(), path
    for number in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                assert secret not in Path("/proc", number, name).read_bytes(), (number, name)
            except OSError:  # it ended meanwhile
                continue
    assert KEY_SECRET not in stand.server.request("GET", f"/v1/sandboxes/{box}").text
