# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Programs of the operating system: which are needed, which are missing, how to get them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devkit import ROOT
from devkit.shell import Failed, run, say

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])


@dataclass(frozen=True)
class Need:
    """Any one of `programs` (names on PATH, or absolute paths) satisfies it; `package` brings it."""

    programs: tuple[str, ...]
    package: str
    purpose: str

    @property
    def satisfied(self) -> bool:
        return any(shutil.which(program, path=SEARCH_PATH) for program in self.programs)


NEEDS = (
    Need(("crun", "runc"), "crun", "starts containers"),
    Need(("runc",), "runc", "the second engine of the tests"),
    Need(("runsc",), "runsc", "starts sandboxes with a kernel of their own (gVisor)"),
    Need(("nft",), "nftables", "filters what sandboxes may reach"),
    Need(("ip",), "iproute2", "inspects sandbox networks in tests"),
    Need(("/usr/bin/python3",), "python3", "the Python inside the `host` image"),
    Need(("/usr/bin/bash",), "bash", "the shell inside the `host` image"),
    Need(("/usr/bin/unshare",), "util-linux", "isolation tests"),
    Need(("skopeo",), "skopeo", "fetches images"),
    Need(("mmdebstrap",), "mmdebstrap", "builds images of Debian packages"),
    Need(("docker-registry",), "docker-registry", "the registry that tests pull from"),
    Need(("/usr/bin/busybox", "/bin/busybox"), "busybox-static", "the program inside the tests' images"),
    Need(
        ("initdb", *sorted(str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/initdb"))),
        "postgresql",
        "the database that several servers share, for tests",
    ),
    Need(("dockerd",), "docker.io", "the engine of the Docker runtime's tests"),
    Need(("docker",), "docker.io", "speaks to that engine"),
    Need(("iptables",), "iptables", "dockerd refuses to start without it"),
    Need(("qemu-system-x86_64",), "qemu-system-x86", "runs virtual machines"),
    Need(("mke2fs",), "e2fsprogs", "makes the disks of virtual machines"),
    Need(("cpio",), "cpio", "reads, in a test, the archives that virtual machines start from"),
)


def install_missing(needs: tuple[Need, ...] = NEEDS) -> None:
    """Install with apt as root on Debian and its kin; elsewhere say what to install and stop."""
    missing = [need for need in (*needs, *_venv_need()) if not need.satisfied]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        lines = [f"  {'/'.join(n.programs):<24} {n.purpose} (Debian package: {n.package})" for n in missing]
        raise Failed("these programs are missing, please install them:\n" + "\n".join(lines))
    names = sorted({need.package for need in missing})
    say(f"installing with apt-get: {' '.join(names)}")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "-qq", "update"], env=environment, quiet=True)
    run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *names], env=environment, quiet=True)


def _venv_need() -> tuple[Need, ...]:
    """Debian cuts `ensurepip` out of its Python; then no environment can be made."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return (Need(("python3-without-ensurepip",), "python3-venv", "makes virtual environments"),)
    return ()


def go_is_new_enough() -> bool:
    """Whether the `go` on PATH satisfies the `go` line of go.mod."""
    go = shutil.which("go")
    if go is None:
        return False
    wanted = re.search(r"^go (\d+)\.(\d+)", (ROOT / "dataplane" / "go.mod").read_text(), re.MULTILINE)
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    if wanted is None or found is None:
        return False
    return tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups()))


def go_command() -> str:
    """The Go to use: the system's, else the one that setup put into the environment."""
    if go_is_new_enough():
        return "go"
    inside = sorted((ROOT / ".venv" / "lib").glob("python*/site-packages/go/bin/go"))
    if not inside:
        raise Failed("no Go tool chain found; run ./dev setup")
    return str(inside[0])


def gofmt_command() -> str:
    """gofmt lies beside go."""
    go = shutil.which(go_command())
    assert go is not None
    beside = Path(go).resolve().with_name("gofmt")
    return str(beside) if beside.is_file() else "gofmt"
