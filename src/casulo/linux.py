# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The few Linux system calls that Python's standard library lacks.

Every failure is an OSError whose text says the operation and the object, e.g.
`bind /a on /b: Permission denied`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2
CLONE_FS = 0x200
CLONE_NEWNS = 0x20000
CLONE_NEWNET = 0x40000000
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36

CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12, "CAP_SYS_RESOURCE": 24}
"""Numbers of the capabilities that the local runtime asks about (linux/capability.h)."""

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_IDMAP = 0x100000
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_SECCOMP_MODE_FILTER = 2


class _MountAttributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


_SMALL = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _checked(result, f"mount {kind or 'bind'} {source} on {target}")


def bind(source: str, target: str) -> None:
    """Make `source` visible at `target`, with the flags of the file system it is on."""
    mount(source, target, "", MS_BIND)


def clone_mount(descriptor: int) -> int:
    """A detached mount of what the descriptor is on, without what is mounted below it; closes on exec."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH
    found: int = _libc.syscall(_OPEN_TREE, descriptor, ctypes.c_char_p(b""), flags)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"open_tree: {os.strerror(number)}")
    return found


def set_mount(tree: int, attributes: int, user_namespace: int | None = None) -> None:
    """Set MOUNT_ATTR_* on a detached mount.

    With a user namespace, who is root there is whoever owns files as root on the disk.
    """
    if user_namespace is not None:
        attributes |= _MOUNT_ATTR_IDMAP
    how = _MountAttributes(attributes, 0, 0, user_namespace or 0)
    path = ctypes.c_char_p(b"")
    size = ctypes.sizeof(how)
    result = _libc.syscall(_MOUNT_SETATTR, tree, path, _AT_EMPTY_PATH, ctypes.byref(how), size)
    _checked(result, "mount_setattr")


def attach_mount(tree: int, target: str) -> None:
    """Make a detached mount visible at `target`."""
    result = _libc.syscall(
        _MOVE_MOUNT,
        tree,
        ctypes.c_char_p(b""),
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(target)),
        _MOVE_MOUNT_F_EMPTY_PATH,
    )
    _checked(result, f"move_mount to {target}")


def mounts_below(folder: str) -> list[str]:
    """Where, strictly below `folder`, this thread's mount namespace has mounts."""
    escaped = re.compile(r"\\([0-7]{3})")
    lines = Path("/proc/thread-self/mountinfo").read_text(errors="surrogateescape").splitlines()
    places = {escaped.sub(lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines}
    start = folder.rstrip("/") + "/"
    return sorted(place for place in places if place.startswith(start) and place != start)


def unmount(target: str) -> None:
    """Detach a mount; a path that is no mount point, or does not exist, is left alone."""
    if _libc.umount2(target.encode(), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        if number not in (22, 2):  # EINVAL: not a mount point; ENOENT
            raise OSError(number, f"unmount {target}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2) for the calling thread only."""
    _checked(_libc.unshare(flags), f"unshare {flags:#x}")


def enter_network(namespace: int) -> None:
    """setns(2) of the calling thread only, into a network namespace."""
    _checked(_libc.setns(namespace, CLONE_NEWNET), "setns")


def private_mounts() -> None:
    """Give the calling thread a mount namespace whose changes nobody else sees."""
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def become_subreaper() -> None:
    """Orphaned descendants become this process's children, so that their end can be read."""
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl subreaper")


def keep_descriptors_private() -> None:
    """Nothing that is open now is inherited by what is started later, unless it is passed on purpose."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the one that read the list
                os.set_inheritable(int(name), False)
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):  # engines pass on what these count
        os.environ.pop(variable, None)


def terminate_with_parent() -> None:
    """This process gets SIGTERM when its parent ends, however the parent ends."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "prctl parent death signal")


def keep_memory_private() -> None:
    """Never write this process's memory to a file; what it starts afterwards is not affected.

    A limit on core files would be: it is inherited, and programs that the kernel hands cores to ignore it.
    Only root may do it without losing sight of its own /proc.
    """
    if os.geteuid() == 0:
        _checked(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl dumpable")


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def filter_calls(program: bytes) -> None:
    """Put a seccomp filter, an array of struct sock_filter, on the calling thread for good."""
    instructions = ctypes.create_string_buffer(program)
    whole = _Program(len(program) // 8, ctypes.addressof(instructions))
    result = _libc.prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0)
    _checked(result, "seccomp filter")


def in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a fresh thread, since namespaces entered by a thread cannot be left again."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # carried to the caller's thread, whatever it is
            failure.append(error)

    thread = threading.Thread(target=body, name="namespace")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def read_file(path: str | os.PathLike[str]) -> str:
    """A small file that is read in one go, as those of /proc are. Half the calls of `Path.read_text`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _SMALL).decode(errors="surrogateescape")
    finally:
        os.close(descriptor)


def write_file(path: str | os.PathLike[str], text: str, flags: int = 0, mode: int = 0o644) -> None:
    """Write into a file with one call, as those of /proc and /sys want it; `flags` may create it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, mode)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


NEW_FILE = os.O_CREAT | os.O_TRUNC


def has_capability(name: str) -> bool:
    """Whether this process holds the capability effectively."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAPABILITIES[name] & 1)
    return False


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is no live process.

    Together with the number it names a process for good, since numbers are used again.
    """
    try:
        stat = read_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
