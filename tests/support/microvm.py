# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Virtual machines in tests: what they need, and which tests run on them.

Where KVM does not work they are emulated, some ten times slower than a container. So of the conformance
suite they run what concerns the runtime, and leave out what only concerns the daemon, which is the same.
Kernel, image disk and templates are kept between runs.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from casulo.client import Client, Connection, Sandbox
from casulo.model.errors import CasuloError
from casulo.runtimes.microvm import fchost, kernel
from casulo.runtimes.microvm.store import Store
from support.server import Server

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "casulo-tests" / "microvm"
SECONDS = 600
"""A first test may have to wait until an image disk and a template are made."""

CHOSEN = {
    "test_code_runtimes.py": ("death",),
    "test_commands.py": ("stdout", "exit", "own-session", "background_child", "3MiB"),
    "test_lifecycle.py": ("",),
    "test_endings.py": ("b081", "b013"),
    "test_endpoints.py": ("query_arrive_unchanged[direct", "websockets"),
    "test_files.py": ("direct-microvm-1048577", "open_file", "b023"),
    "test_hooks.py": ("begins", "again_and_again"),
    "test_snapshots.py": ("branches", "files_outlive"),
}
"""Files of the conformance suite, and parts of the names of their tests."""

EVERYTHING = bool(os.environ.get("CASULO_MACHINES_RUN_ALL"))
"""All of the suite, as on any other runtime: where there is time for it."""

LEFT_OUT = ("'disk': '1Gi'", "casulo.isolation", "b045")
"""What other runtimes refuse and machines can do, and a crowd of creates, which is for KVM."""


FIRECRACKER = "firecracker"
"""The same suite on the other monitor, all of it, where that can run; else one test says that it cannot."""


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not worth its time on machines; give the rest more of it."""
    left_out = []
    unable = bool(_why_no_firecracker_at_first_sight())
    for item in items:
        place = _place(item)
        if place in ("microvm", FIRECRACKER):
            item.add_marker(pytest.mark.timeout(SECONDS))
        if place == "microvm" and not _is_chosen(item):
            left_out.append(item)
    there = [item for item in items if _place(item) == FIRECRACKER]
    if unable and there:
        _asked_for.extend(item.nodeid for item in there)
        left_out += there[1:]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _place(item: pytest.Item) -> str:
    given = getattr(item, "callspec", None)
    found = {given.params.get(name) for name in ("place", "night", "sandbox")} if given else set()
    return next((name for name in (FIRECRACKER, "microvm") if name in found), "")


_asked_for: list[str] = []


def why_no_firecracker() -> str:
    """Empty when Firecracker runs machines here; otherwise what is missing, and for how many tests."""
    reason = _why_no_firecracker_at_first_sight() or why_not() or _why_not_booting()
    return f"{reason} ({len(_asked_for)} tests of the suites on Firecracker)" if reason else ""


def _why_no_firecracker_at_first_sight() -> str:
    if shutil.which("firecracker") is None:
        return "firecracker is not installed"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "there is no usable /dev/kvm"
    return ""


def _why_not_booting() -> str:
    refusal = fchost.why_not(Store(FOLDER).kernel())
    return str(refusal) if refusal else ""


def _is_chosen(item: pytest.Item) -> bool:
    if any(word in item.name for word in LEFT_OUT):
        return False
    return (
        EVERYTHING
        or item.path.parent.name in ("microvm", "chaos")
        or any(word in item.name for word in CHOSEN.get(item.path.name, ()))
    )


def why_not() -> str:
    """Empty when machines can be made here; then a failure to do so is a failure."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "virtual machines need Linux on x86-64"
    if os.geteuid() != 0:
        return "virtual machines are tested as root"
    for program in ("qemu-system-x86_64", "mke2fs", "nft"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"{program} is not installed"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    return _why_no_kernel()


def _why_no_kernel() -> str:
    store = Store(FOLDER)
    store.prepare()
    try:
        with store.locked("kernel"):
            if not list(store.kernels.glob("*/vmlinuz.head")):
                kernel.fetch(store.kernels)
    except CasuloError as error:
        return f"no kernel for virtual machines: {error}"
    return ""


def tables(network: str, extra: str, monitor: str = "qemu") -> str:
    """The part of a server's configuration that is about machines."""
    text = f'[microvm]\nfolder = "{FOLDER}"\nnetwork = "{network}"\nmonitor = "{monitor}"\n'
    return text if "[sandbox]" in extra else f"{text}[sandbox]\nstart_timeout_seconds = 180\n"


TICKS = 0.2
_SLEEPER = f"""cd /root; mkdir -p web; echo served > web/file
(cd web; exec python3 -m http.server 8080 --bind 0.0.0.0) >/dev/null 2>&1 &
(while :; do echo tick; sleep {TICKS}; done) > ticks 2>&1 &
(sleep 60; date +%s > fired) &
exec sleep 100000"""


@dataclass(frozen=True)
class Asleep:
    """A sandbox that was paused at `since`, when it had ticked so often; it listens on port 8080."""

    box: str
    since: float
    ticks: int


def put_to_sleep(server: Server) -> Asleep:
    """One that ticks, waits for its alarm, listens, and is paused."""
    with Client(Connection(server.url, server.api_key, request_timeout=SECONDS)) as client:
        box = Sandbox.create("host", entrypoint=["sh", "-c", _SLEEPER], client=client)
        listening = "until curl -sf localhost:8080/file; do sleep 0.2; done"
        box.commands.run(listening, timeout=SECONDS).check()
        ticks = int(box.commands.run("wc -l < /root/ticks").check().stdout)
        box.pause()
        return Asleep(box.id, time.time(), ticks)


def warm_up(server: Server) -> None:
    """Have the template made, which no test shall wait for."""
    with Client(Connection(server.url, server.api_key, request_timeout=SECONDS)) as client:
        Sandbox.create("host", client=client).kill()
