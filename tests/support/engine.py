# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A Docker Engine for one test session, with images made on the spot, that leaves nothing behind.

It shares this machine's network, since sandboxes are to be reached, but has no bridge of its own and
writes no packet filter rules.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from casulo.images import daemon
from support import trees

IMAGE = "casulo-test/debian:1"
BUSYBOX = "casulo-test/busybox:1"
STATIC = "casulo-test/static:1"
LANGUAGES = "casulo-test/languages:1"
FOREVER = 'CMD ["tail", "-f", "/dev/null"]'
DEBIAN = ("WORKDIR /workspace", "ENV LANG=C.UTF-8", FOREVER)
_TIMEOUT = 120.0
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_BUSYBOX = ("sh", "cat", "echo", "env", "grep", "id", "ls", "sleep", "tail", "true", "touch", "pwd", "wc")
_ACCOUNTS = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"
_GROUPS = "root:x:0:\napp:x:1001:\nextra:x:1002:app\n"


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    folder: Path

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def settings(self) -> str:
        """The part of a server's configuration that names it."""
        return f'[docker]\nhost = "{self.url}"\n'

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """What the command line says; an error is a failure with its words."""
        command = ["docker", "--host", self.url, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=_TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def build(self, name: str, archive: Path | bytes, *changes: str) -> str:
        """An image of a tar archive, with Dockerfile instructions applied; its name."""
        options = [word for change in changes for word in ("--change", change)]
        if isinstance(archive, bytes):
            self.docker("import", *options, "-", name, stdin=archive)
        else:
            self.docker("import", *options, str(archive), name)
        return name

    def ours(self) -> dict[str, list[str]]:
        """Everything that servers left with it, but the empty image."""
        networks = self.docker("network", "ls", "--format", "{{.Name}}").split()
        return {
            "containers": self.docker("ps", "--all", "--format", "{{.Names}}").split(),
            "volumes": self.docker("volume", "ls", "--format", "{{.Name}}").split(),
            "networks": [name for name in networks if name.startswith("casulo-")],
        }


def why_not() -> str:
    """Empty when an engine can be started here."""
    if os.geteuid() != 0:
        return "only root can start a Docker engine"
    missing = [name for name in ("dockerd", "docker") if shutil.which(name, path=_SEARCH_PATH) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def running(*options: str) -> Iterator[Engine]:
    """Start one without images, and at the end remove every trace of it."""
    had_run_docker = Path("/run/docker").exists()
    with tempfile.TemporaryDirectory(prefix="casulo-engine-") as place:
        engine = Engine(Path(place))
        cgroup = engine.folder.name
        process = _start(engine.folder, cgroup, options)
        try:
            _wait_until_ready(engine, process)
            yield engine
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_TIMEOUT)
            remove_cgroups(cgroup)
            if not had_run_docker:
                shutil.rmtree("/run/docker", ignore_errors=True)


def add_images(engine: Engine) -> None:
    """The images of the suites: a small Debian, busybox, and one with a single static program."""
    folder = engine.folder
    engine.build(IMAGE, trees.debian(folder), *DEBIAN)
    engine.build(BUSYBOX, trees.files(busybox_files()), FOREVER)
    program = daemon.execd_binary(daemon.host_architecture())
    engine.build(STATIC, trees.files({"program": program.read_bytes()}), 'ENTRYPOINT ["/program"]')


def add_languages(engine: Engine) -> str:
    """The small Debian with what this machine has of the interpreter's languages; the image's name."""
    archive = trees.with_languages(engine.folder)
    engine.build(LANGUAGES, archive, *DEBIAN)
    archive.unlink()
    return LANGUAGES


def busybox_files() -> dict[str, str | bytes]:
    """One static program under many names, and accounts."""
    found = shutil.which("busybox", path=_SEARCH_PATH)
    assert found, "busybox is not installed"
    links = {f"bin/{name}": "->busybox" for name in _BUSYBOX}
    accounts = {"etc/passwd": _ACCOUNTS, "etc/group": _GROUPS}
    return {"bin/busybox": Path(found).read_bytes(), **links, **accounts}


def _start(folder: Path, cgroup: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [
        *("setpriv", "--pdeathsig", "TERM"),  # it ends with a test run that is killed
        *("dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
        *("--pidfile", str(folder / "docker.pid"), "--host", f"unix://{folder / 'docker.sock'}"),
        *("--bridge", "none", "--iptables=false", "--ip-masq=false", "--ip-forward=false"),
        *("--cgroup-parent", cgroup),
        *options,
    ]
    environment = {**os.environ, "PATH": _SEARCH_PATH}
    with (folder / "dockerd.log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _wait_until_ready(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    command = ["docker", "--host", engine.url, "version"]
    while subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd did not start:\n{(engine.folder / 'dockerd.log').read_text()}")
        time.sleep(0.1)


def remove_cgroups(name: str) -> None:
    """An engine leaves the group above its containers' behind."""
    walked = os.walk("/sys/fs/cgroup")  # which bears that others' groups go while it looks
    for top in [Path(folder, name) for folder, inner, _ in walked if name in inner]:
        for path in sorted(top.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        top.rmdir()
