# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Making volumes visible in the private mount namespace of one start, from where the OCI runtime takes them.

The source is opened and mounted as one descriptor, so what was checked is what is mounted. Owners are
mapped by the mount: root of the sandbox is root on the disk, whatever user it is on this host.

Without root the same is done by this module as a program (`command`), inside the user namespace of the start.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from casulo import linux
from casulo.model.errors import CasuloError, Code, RuntimeFailure, Unsupported
from casulo.runtimes.hostpaths import Place, opened
from casulo.runtimes.local.bundle import Bind


@dataclass(frozen=True)
class VolumeMount:
    """One volume of one sandbox, ready to be mounted."""

    place: Place
    target: str
    read_only: bool
    mapped: bool = True
    """Off where owners are translated by the file system itself."""


def points(run: Path, mounts: Sequence[VolumeMount]) -> list[Path]:
    """Where `mount_all` shows each of them."""
    return [run / "volumes" / str(number) for number, _ in enumerate(mounts)]


def mount_all(mounts: Sequence[VolumeMount], run: Path, user_namespace: Path | None) -> None:
    """Show every volume below the server's folder `run`, in a mount namespace that is nobody else's."""
    if not mounts:
        return
    folder = run / "volumes"
    folder.mkdir(exist_ok=True)
    linux.mount("volumes", str(folder), "tmpfs", linux.MS_NODEV | linux.MS_NOSUID, "mode=755,size=64k")
    for mount, point in zip(mounts, points(run, mounts), strict=True):
        with opened(mount.place) as source:
            _mount(mount, source, point, user_namespace)


def _mount(mount: VolumeMount, source: int, point: Path, user_namespace: Path | None) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        point.mkdir()
    else:
        point.touch()
    try:
        tree = linux.clone_mount(source)
        try:
            _restrict(tree, mount, user_namespace)
            linux.attach_mount(tree, str(point))
        finally:
            os.close(tree)
    except OSError as error:
        raise RuntimeFailure(f"volume at {mount.target}: {error}", code=Code.SANDBOX_START_FAILED) from error


def _restrict(tree: int, mount: VolumeMount, user_namespace: Path | None) -> None:
    attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
    if mount.read_only:
        attributes |= linux.MOUNT_ATTR_RDONLY
    linux.set_mount(tree, attributes)
    if user_namespace is not None and mount.mapped:
        _map_owners(tree, mount, user_namespace)


def _map_owners(tree: int, mount: VolumeMount, user_namespace: Path) -> None:
    descriptor = os.open(user_namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.set_mount(tree, 0, descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        raise Unsupported(
            f"volume at {mount.target}: the file system of {mount.place.path} cannot map owners to a sandbox",
            code=Code.VOLUME_UNSUPPORTED,
            hint="ext4, xfs, btrfs and, since Linux 6.3, tmpfs can; or use the local runtime with userns off",
        ) from error
    finally:
        os.close(descriptor)


def mapping_problem(folder: Path, user_namespace: Path | None) -> Unsupported | OSError | None:
    """Why volumes below `folder` cannot be mounted into sandboxes of this user namespace.

    Unsupported when it is due to the file system, OSError when the kernel cannot do it at all.
    """
    if user_namespace is None:
        return None
    trial = VolumeMount(Place("trial", str(folder.resolve())), "/mnt", read_only=True)
    try:
        with opened(trial.place) as source:
            tree = linux.clone_mount(source)
        try:
            _restrict(tree, trial, user_namespace)
        finally:
            os.close(tree)
    except (Unsupported, OSError) as error:
        return error
    return None


def command(mounts: Sequence[VolumeMount], run: Path) -> list[str]:
    """Words to put before a command, in whose mount namespace the volumes then are."""
    if not mounts:
        return []
    plan = json.dumps({"run": str(run), "mounts": [asdict(mount) for mount in mounts]})
    return [sys.executable, "-P", "-m", "casulo.runtimes.local.mounting", plan]


def main(plan: str, *then: str) -> None:
    """The program: mount, and become the command."""
    wanted = json.loads(plan)
    mounts = [VolumeMount(**{**mount, "place": Place(**mount["place"])}) for mount in wanted["mounts"]]
    try:
        mount_all(mounts, Path(wanted["run"]), None)
    except CasuloError as error:
        sys.exit(str(error))
    os.execvp(then[0], then)


def binds(run: Path, mounts: Sequence[VolumeMount]) -> list[Bind]:
    """What the OCI runtime has to be told."""
    shown = zip(points(run, mounts), mounts, strict=True)
    return [Bind(point, m.target, writable=not m.read_only) for point, m in shown]


if __name__ == "__main__":
    main(*sys.argv[1:])
