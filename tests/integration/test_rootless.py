# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The local runtime as an ordinary user: real sandboxes with limits, or the setting that forbids it.

The server runs as a user that owns nothing. The interpreter and its packages are shown to that
user by bind mounts in a mount namespace that ends with the server.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import casulo
from casulo.client import Client, Sandbox, Volume
from casulo.client.connection import Connection
from casulo.runtimes.local import cgroups
from support.machine import cannot_run

UID = 61234
SYSTEM_PYTHON = Path("/usr/bin/python3")
_MOUNT = f"""
set -e
mount --bind "$1" "$3/src"; mount --bind "$2" "$3/site"; shift 3
exec setpriv --reuid {UID} --regid {UID} --clear-groups "$@"
"""

_CHANGE = """
mkdir ~/closed; echo kept > ~/closed/file; chmod 0 ~/closed/file ~/closed
gone=$(find /etc -maxdepth 1 -type f ! -name 'host*' ! -name passwd | head -1)
rm "$gone" && echo "$gone"
"""
"""What an ordinary user cannot read without the rights of the sandbox's root, and a file less."""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the user owns, where the interpreter's packages will be shown."""
    if os.geteuid() != 0:
        cannot_run("becoming another user needs root")
    if not (shutil.which("crun") and shutil.which("setpriv") and _same_python()):
        cannot_run("needs crun, setpriv and a system Python of this version that every user may run")
    folder = Path(tempfile.mkdtemp(prefix="casulo-rootless-"))
    for name in ("src", "site", "data"):
        (folder / name).mkdir()
        os.chown(folder / name, UID, UID)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def delegated() -> Iterator[None]:
    """Control groups handed to the user, as the refusal's hint says to."""
    layout = cgroups.detect()
    if layout.mode == "v2":
        cannot_run("on cgroup v2 only systemd hands a group to a process")
    groups = [point / f"casulo-{UID}" for point in dict.fromkeys(layout.v1.values())]
    for group in groups:
        group.mkdir(exist_ok=True)
        for path in (group, *group.iterdir()):
            os.chown(path, UID, UID)
    yield
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)


def _same_python() -> bool:
    command = [str(SYSTEM_PYTHON), "-c", "import sys; print(sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() == str(sys.version_info[:2])


def _start(home: Path) -> subprocess.Popen[bytes]:
    source = Path(casulo.__file__).resolve().parent.parent
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh"]
    command += [str(source), site.getsitepackages()[0], str(home)]
    command += [str(SYSTEM_PYTHON), "-m", "casulo.cli", "server", "--port", "0"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home / "data"),
        "CASULO_HOME": str(home / "data"),
        "PYTHONPATH": f"{home}/src:{home}/site",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (home / "output").open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd="/"
        )


def _url(home: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if (home / "data/server.json").exists():
            return str(json.loads((home / "data/server.json").read_text())["url"])
        time.sleep(0.05)
    raise AssertionError((home / "output").read_text())


@pytest.mark.usefixtures("delegated")
def test_sandbox_without_root_runs_and_keeps_its_limits(home: Path) -> None:
    process = _start(home)
    try:
        url = _url(home, process)
        connection = Connection(url, api_key=(home / "data/api-key").read_text().strip())
        limits = {"cpu": "1", "memory": "64Mi", "pids": "64"}
        volumes = [Volume.named("kept", "/data", sub_path="a/b"), Volume.named("kept", "/ro", read_only=True)]
        options = {"connection": connection, "resources": limits, "volumes": volumes}
        with Sandbox.create("host", **options) as sandbox:
            who = sandbox.commands.run("id -u; ls /home; ip -o link | wc -l; cat /proc/self/uid_map")
            assert who.exit_code == 0, who.stderr
            uid, homes, links, mapping = who.stdout.splitlines()
            assert (uid, homes, links) == ("0", "user", "1")
            assert mapping.split() == ["0", str(UID), "1"]
            assert sandbox.commands.run("python3 -c 'bytearray(200 << 20)'").exit_code != 0
            assert sandbox.commands.run("echo alive").stdout == "alive\n"
            assert sandbox.commands.run("unshare -U true").exit_code != 0
            assert (
                sandbox.commands.run("id -u > /data/file; cat /ro/a/b/file; stat -c %u /data").stdout
                == "0\n0\n"
            )
            assert sandbox.commands.run("touch /ro/x").exit_code != 0
            gone = sandbox.commands.run(_CHANGE).check().stdout.strip()
            snapshot = sandbox.snapshot()
        with Sandbox.create(snapshot=snapshot, connection=connection, resources=limits) as restored:
            done = restored.commands.run(f"cat ~/closed/file; stat -c %a ~/closed; test ! -e {gone}")
            assert (done.exit_code, done.stdout) == (0, "kept\n0\n"), done
        with Client(connection) as client:
            client.snapshots.delete(snapshot.id)
        assert list((home / "data/snapshots/layers").iterdir()) == []
        assert list((home / "data/sandboxes").iterdir()) == []
        assert (home / "data/volumes/kept/data/a/b/file").stat().st_uid == UID
    finally:
        process.terminate()
        process.wait(30)


def test_without_delegated_groups_it_says_what_to_do(home: Path) -> None:
    process = _start(home)
    assert process.wait(30) != 0
    said = (home / "output").read_text()
    assert "no control group is delegated to this user" in said
    assert "chown" in said or "systemd-run" in said
