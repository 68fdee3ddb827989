# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whether gVisor works on this host, found out by starting it once per boot.

A platform is gVisor's way to run code of the sandbox. Which ones work depends on its release, the
processor and the kernel; one that does not may also hang, so each trial has a time limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from casulo import linux
from casulo.images import daemon
from casulo.model.errors import Code, Unsupported
from casulo.runtimes.local.bundle import Bind

PLATFORMS = ("systrap", "ptrace")
"""Tried in this order. `kvm` is only tried when it is asked for: without hardware it hangs."""

TRIAL_SECONDS = 8.0
INSTALL = "apt-get install runsc"


@dataclass(frozen=True)
class Found:
    """A gVisor that works: its program, its release, the platform that was chosen, and whether programs
    need the preloaded library without which `ls` and `stat` fail."""

    program: Path
    release: str
    platform: str
    needs_statx: bool


def find(wanted: str, shared: Path) -> Found:
    """The gVisor of this host; Unsupported says why there is none.

    `wanted` is a platform or `auto`. What was found is kept in `shared`, which a reboot empties.
    """
    path = shutil.which("runsc")
    if path is None:
        raise Unsupported("runsc is not installed", code=Code.HOST_UNSUPPORTED, hint=INSTALL)
    notes = shared / f"gvisor-{_identity(Path(path), wanted)}.json"
    try:
        told = json.loads(notes.read_text())
        return Found(Path(path), told["release"], told["platform"], told["needs_statx"])
    except (FileNotFoundError, ValueError, KeyError):
        found = _try_all(Path(path), wanted)
    shared.mkdir(parents=True, exist_ok=True)
    facts = {"release": found.release, "platform": found.platform, "needs_statx": found.needs_statx}
    notes.write_text(json.dumps(facts))
    return found


def _identity(program: Path, wanted: str) -> str:
    """Changes with the program's file and with what is asked for."""
    status = program.stat()
    facts = (str(program), status.st_size, status.st_mtime_ns, wanted)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _release(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    return done.stdout.partition("\n")[0].removeprefix("runsc version ").strip()


def _try_all(program: Path, wanted: str) -> Found:
    words = []
    for platform in PLATFORMS if wanted == "auto" else (wanted,):
        worked, said = _try(program, platform)
        if worked:
            return Found(program, _release(str(program)), platform, "AT_NO_AUTOMOUNT" in said)
        words.append(f"{platform}: {said}")
    raise Unsupported(
        f"gVisor does not start here ({'; '.join(words)})",
        code=Code.HOST_UNSUPPORTED,
        hint="install a newer runsc, or set [local] gvisor_platform to one that this machine has",
    )


def _try(program: Path, platform: str) -> tuple[bool, str]:
    """Whether a sandbox ran, and what it said."""
    with tempfile.TemporaryDirectory(prefix="casulo-gvisor-") as scratch:
        folder = Path(scratch)
        name = f"casulo-probe-{os.getpid()}"
        _write_bundle(folder)
        options = ["--root", f"{scratch}/state", "--ignore-cgroups", "--network=none"]
        command = [str(program), *options, f"--platform={platform}", "run", "--bundle", scratch, name]
        process = _start(command)
        try:
            output, _ = process.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            _end(process)
            return False, f"nothing happened within {TRIAL_SECONDS:g} s"
        words = output.decode(errors="replace").strip() or f"exit code {process.returncode}"
        return process.returncode == 0, words.splitlines()[-1]


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    nothing, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=same)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and what it started, which is in sessions of its own but descends from it."""
    for pid in (process.pid, *_descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _write_bundle(folder: Path) -> None:
    """The daemon alone, asked what the kernel lacks: it needs no other file."""
    root = folder / "rootfs"
    root.mkdir()
    shutil.copy(daemon.execd_binary(daemon.host_architecture()), root / "execd")
    config = {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/execd", "--probe"], "cwd": "/", "env": []},
        "root": {"path": str(root), "readonly": True},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "uts", "ipc", "network")]},
    }
    (folder / "config.json").write_text(json.dumps(config))


def hide_default_sizes(whole: Path, empty: Path) -> None:
    """In a mount namespace of the caller's own, let releases before 2024 use their network stack.

    They take a namespace in which /proc/sys/net/core/rmem_default exists for the host's own and refuse
    it; Linux 6.10 and later show that file in all. `empty` covers /proc/sys/net; on `whole` lies a /proc
    that nothing covers, without which the kernel lets nobody in a user namespace mount another.
    """
    linux.bind("/proc", str(whole))
    linux.bind(str(empty), "/proc/sys/net")


_LIBRARY = "/opt/opensandbox/statx.so"


def install_library(run: Path) -> None:
    """Have the library at hand where it was built. Idempotent; called before any sandbox starts."""
    built = daemon.statx_library(daemon.host_architecture())
    if built is not None and not (run / "ld.so.preload").exists():
        shutil.copyfile(built, run / "statx.so")
        (run / "ld.so.preload").write_text(f"{_LIBRARY}\n")


def preloaded(run: Path) -> list[Bind]:
    """What makes every dynamic program of the GNU C library preload the library, if there is one.

    Mounted rather than written, so that no snapshot takes it elsewhere.
    """
    listed = run / "ld.so.preload"
    if not listed.exists():
        return []
    return [Bind(run / "statx.so", _LIBRARY), Bind(listed, "/etc/ld.so.preload")]
