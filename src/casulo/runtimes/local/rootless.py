# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Running without root: what the kernel must allow, and where control groups were delegated.

The sandbox then lives in a user namespace made by the server's own user. It has no network but
loopback, and one user inside: root, who is the server's user on the host. Limits stay mandatory:
without delegated control groups nothing starts.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from casulo.model.errors import Code, Unsupported
from casulo.runtimes.local.cgroups import Layout

_SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Kernel settings that forbid user namespaces to ordinary users, the value that does, the remedy."""


def require(userns: str) -> None:
    """Unsupported, naming the kernel setting, unless this user may make user namespaces."""
    if userns == "off":
        raise Unsupported(
            'without root the local runtime needs a user namespace, and [local] userns is "off"',
            code=Code.HOST_UNSUPPORTED,
            hint='set it to "auto", or run `osb server` as root',
        )
    for path, forbidding, remedy in _SWITCHES:
        if _read(path) == forbidding:
            name = ".".join(Path(path).parts[3:])
            raise Unsupported(
                f"the kernel setting {name} = {forbidding} forbids user namespaces without root",
                code=Code.HOST_UNSUPPORTED,
                hint=f"as root: {remedy}; or run `osb server` as root",
            )
    _try()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except FileNotFoundError:  # this kernel has no such switch
        return ""


def _try() -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise Unsupported(
            f"this host refuses a user namespace with mounts: {done.stderr.strip()}",
            code=Code.HOST_UNSUPPORTED,
            hint="a container or security module may forbid it; run `osb server` as root",
        )


def runtime_folder(data: Path) -> Path:
    """Where short-lived files go."""
    found = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(found) if found and os.access(found, os.W_OK) else data / "run"


def usable(layout: Layout) -> Layout:
    """On hybrid hosts an ordinary user cannot move processes in the v2 tree, which limits nothing there."""
    return Layout(layout.v1, None) if layout.mode == "hybrid" else layout


def cgroup_parent(layout: Layout) -> str:
    """The group, below every cgroup mount, that was delegated to this user.

    `casulo-<uid>` where root made it; on v2 also the group that systemd delegated to this process.
    """
    own = f"casulo-{os.geteuid()}"
    trees = [*dict.fromkeys([*layout.v1.values(), *([layout.v2] if layout.v2 else [])])]
    if all(os.access(tree / own / "cgroup.procs", os.W_OK) for tree in trees):
        return own
    if layout.mode == "v2" and layout.v2:
        delegated = _own_v2_group()
        if os.access(layout.v2 / delegated / "cgroup.subtree_control", os.W_OK):
            _step_aside(layout.v2 / delegated)
            return delegated
    raise Unsupported(
        "no control group is delegated to this user, so the limits of a sandbox could not be set",
        code=Code.HOST_UNSUPPORTED,
        hint=_delegate_command(trees, own, layout),
    )


def _delegate_command(trees: list[Path], own: str, layout: Layout) -> str:
    if layout.mode == "v2":
        return "start it with: systemd-run --user --scope -p Delegate=yes osb server; or run it as root"
    folders = " ".join(shlex.quote(str(tree / own)) for tree in trees)
    return f"as root: mkdir -p {folders} && chown -R {os.geteuid()} {folders}; or run `osb server` as root"


def _own_v2_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:].strip("/")
    return ""


def _step_aside(group: Path) -> None:
    """A group that hands controllers down may hold no process: move this one into a leaf."""
    leaf = group / "casulo-server"
    leaf.mkdir(exist_ok=True)
    (leaf / "cgroup.procs").write_text(str(os.getpid()))


WRAPPER = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "--")
"""Makes the namespaces in which SCRIPT runs."""

SCRIPT = """
set -e
hidden=$1 over=$2 daemon=$3 shown=$4 rootfs=$5 layers=$6
shift 6
if [ -n "$over" ]; then mount --bind "$hidden" "$over"; fi
mount --bind "$daemon" "$shown"
mount -t overlay -o "$layers,userxattr" overlay "$rootfs"
echo 0 > /proc/sys/user/max_user_namespaces
exec "$@"
"""
"""Puts the root file system together, closes the user namespace to further ones, starts crun."""
