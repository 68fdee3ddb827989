# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The `host` image: this machine's own programs, and nothing else of it.

/usr (and /bin, /sbin, /lib* where they are real directories) is bind-mounted read-only. Everything
else is a small generated tree, kept below the data directory under the hash of its content: an
/etc with what programs need to run (users, resolver order, the linker's cache, public CA roots,
links of alternatives and configuration of language runtimes), and empty standard directories.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAME = "host"
WORKDIR = "/workspace"

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = """\
root:x:0:
daemon:x:1:
tty:x:5:
mail:x:8:
user:x:1000:
nogroup:x:65534:
"""
NSSWITCH = """\
passwd: files
group: files
hosts: files dns
protocols: files
services: files
"""

_COPIED = (
    "alternatives", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "host.conf",
    "ImageMagick-6", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "locale.alias",
    "magic", "mime.types", "os-release", "perl", "protocols", "rpc", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
"""Entries of /etc that are public by nature and that programs below /usr look up."""

_COPIED_PREFIXES = ("java-", "python3")
_MAX_FILE = 4 << 20
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DIRECTORIES = {
    "dev": 0o755, "etc": 0o755, "home": 0o755, "home/user": 0o755, "mnt": 0o755, "opt": 0o755,
    "opt/opensandbox": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "srv": 0o755, "sys": 0o555,
    "tmp": 0o1777, "usr": 0o755, "var": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755,
    "var/tmp": 0o1777, "workspace": 0o755, "data": 0o755,
}  # fmt: skip
_OWNED = {"home/user": 1000}


@dataclass(frozen=True)
class Entry:
    """One path of the generated tree: a directory, a link (`target`) or a file (`content`)."""

    path: str
    mode: int
    uid: int = 0
    target: str | None = None
    content: bytes | None = None


@dataclass(frozen=True)
class HostImage:
    """A tree ready to be the lowest layer, and the host directories to bind onto it read-only."""

    root: Path
    binds: tuple[str, ...]
    environment: dict[str, str]
    workdir: str = WORKDIR


def prepare(store: Path, owner: int | None, resolvers: tuple[str, ...]) -> HostImage:
    """Build the tree below `store` unless one of the same content is there already.

    `owner` is the host uid that is root inside, None when everything shall belong to the server's
    own user. `resolvers` go into resolv.conf.
    """
    entries = list(_plan(resolvers))
    digest = hashlib.sha256(repr((owner, entries)).encode()).hexdigest()[:16]
    root = store / digest
    if not root.is_dir():
        building = store / f"{digest}.{os.getpid()}"
        shutil.rmtree(building, ignore_errors=True)
        _write(building, entries, owner)
        building.rename(root)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }
    return HostImage(root, _binds(), environment)


def _binds() -> tuple[str, ...]:
    real = [f"/{name}" for name in _TOP if _is_real_directory(Path("/") / name)]
    return ("/usr", *real)


def _is_real_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _plan(resolvers: tuple[str, ...]) -> Iterator[Entry]:
    for path, mode in _DIRECTORIES.items():
        yield Entry(path, mode, _OWNED.get(path, 0))
    for name in _TOP:
        top = Path("/") / name
        if top.is_symlink():
            yield Entry(name, 0o777, target=os.readlink(top))
        elif top.is_dir():
            yield Entry(name, 0o755)
    yield Entry("var/run", 0o777, target="/run")
    resolv = "".join(f"nameserver {address}\n" for address in resolvers)
    generated = {"passwd": PASSWD, "group": GROUP, "nsswitch.conf": NSSWITCH, "resolv.conf": resolv}
    for name, text in generated.items():
        yield Entry(f"etc/{name}", 0o644, content=text.encode())
    yield Entry("etc/mtab", 0o777, target="/proc/self/mounts")
    for source in _etc_sources():
        yield from _copied(source, f"etc/{source.relative_to('/etc')}")


def _etc_sources() -> list[Path]:
    by_prefix = [p for p in Path("/etc").iterdir() if p.name.startswith(_COPIED_PREFIXES)]
    return sorted([p for name in _COPIED if (p := Path("/etc") / name).exists()] + by_prefix)


def _copied(source: Path, path: str) -> Iterator[Entry]:
    """`source` and what is below it; only what everybody on this host may read anyway."""
    status = source.lstat()
    for parent in reversed(Path(path).parents[:-1]):
        yield Entry(str(parent), 0o755)
    if stat.S_ISLNK(status.st_mode):
        yield Entry(path, 0o777, target=os.readlink(source))
    elif stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 == 0o005:
        yield Entry(path, 0o755)
        for child in sorted(source.iterdir()):
            yield from _copied(child, f"{path}/{child.name}")
    elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size <= _MAX_FILE:
        yield Entry(path, stat.S_IMODE(status.st_mode) & 0o755, content=source.read_bytes())


def _write(root: Path, entries: list[Entry], owner: int | None) -> None:
    root.mkdir(parents=True)
    if owner is not None:
        os.chown(root, owner, owner)
    for entry in entries:
        path = root / entry.path
        if entry.target is not None:
            path.symlink_to(entry.target)
        elif entry.content is not None:
            path.write_bytes(entry.content)
        else:
            path.mkdir(exist_ok=True)
        if owner is not None:
            os.lchown(path, owner + entry.uid, owner + entry.uid)
        if entry.target is None:
            path.chmod(entry.mode)
