# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The yardstick: a Docker daemon of our own, whole and untuned, that leaves nothing behind.

It lives in a network (unless told otherwise) and a mount namespace of its own, so that its bridge, its
packet filter rules and its mounts vanish with it, and the machine's own Docker, if any, is not touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IMAGE = "casulo-yardstick:1"
CGROUP = "casulo-yardstick"
PROGRAMS = ("/bin/true", "/bin/sleep")
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Docker:
    """A running daemon with one imported image that holds `true` and its libraries."""

    socket: Path

    def run(self) -> float:
        """Seconds that `docker run --rm` of a true command takes, the usual way (bridge network)."""
        begun = time.perf_counter()
        self._docker("run", "--rm", IMAGE, "/bin/true")
        return time.perf_counter() - begun

    def version(self) -> str:
        return self._docker("version", "--format", "{{.Server.Version}}").strip()

    def ready(self) -> bool:
        done = subprocess.run(self._command("version"), capture_output=True, check=False, timeout=_TIMEOUT)
        return done.returncode == 0

    def import_image(self, folder: Path) -> None:
        """Make an image of a tree with PROGRAMS in it."""
        tree, archive = folder / "tree", folder / "tree.tar"
        for source in {program: None for name in PROGRAMS for program in (name, *libraries(name))}:
            target = tree / source.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(source).resolve(), target)
        subprocess.run(["tar", "-C", tree, "-cf", archive, "."], check=True)
        self._docker("import", str(archive), IMAGE)

    def _command(self, *arguments: str) -> list[str]:
        return ["docker", "--host", f"unix://{self.socket}", *arguments]

    def _docker(self, *arguments: str) -> str:
        command = self._command(*arguments)
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)
        return done.stdout


def libraries(program: str) -> list[str]:
    """Files that the dynamic linker wants for `program`; none when it is static."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for word in told.split() if word.startswith("/")]


def why_not() -> str:
    """Empty when the yardstick can run here."""
    if os.geteuid() != 0:
        return "only root can start a Docker daemon"
    missing = [name for name in ("dockerd", "docker", "iptables", "unshare") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def daemon(*, own_network: bool = True) -> Iterator[Docker]:
    """Start, import the image, and at the end remove every trace."""
    had_run_docker = Path("/run/docker").exists()
    with tempfile.TemporaryDirectory(prefix="casulo-yardstick-") as place:
        folder = Path(place)
        docker = Docker(folder / "docker.sock")
        process = _start(folder, own_network)
        try:
            _wait_until_ready(docker, process, folder)
            docker.import_image(folder)
            yield docker
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_TIMEOUT)
            _remove_cgroups()
            if not had_run_docker:
                shutil.rmtree("/run/docker", ignore_errors=True)


def _start(folder: Path, own_network: bool) -> subprocess.Popen[bytes]:
    command = [
        *("unshare", *(["--net"] if own_network else []), "--mount", "--propagation", "private"),
        *("dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec"),
        *("--pidfile", folder / "docker.pid", "--host", f"unix://{folder / 'docker.sock'}"),
        *("--cgroup-parent", CGROUP),
    ]
    with (folder / "dockerd.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait_until_ready(docker: Docker, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not docker.ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd did not start:\n{(folder / 'dockerd.log').read_text()}")
        time.sleep(0.1)


def _remove_cgroups() -> None:
    for top in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}"):
        for path in sorted(top.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        top.rmdir()
