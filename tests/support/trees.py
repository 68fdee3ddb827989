# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Root file systems for engines' images, made offline from what is installed on this machine."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from casulo.images import host as host_image
from support.machine import cannot_run

PACKAGES = (
    "bash", "bsdextrautils", "coreutils", "dash", "debianutils", "diffutils", "findutils", "gawk|mawk",
    "grep", "gzip", "hostname", "libc-bin", "procps", "python3", "sed", "tar", "util-linux",
)  # fmt: skip
"""What the conformance suite uses inside, as Debian calls it."""

_LEFT_OUT = (
    "/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info", "/usr/share/lintian",
    "/usr/include/node", "/usr/lib/node_modules",
)  # fmt: skip
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def debian(folder: Path, more: tuple[str, ...] = (), trees: Sequence[str] = ()) -> Path:
    """A tar archive of a small system: the `host` image's own files, PACKAGES and `more`, and whole trees."""
    root = host_image.prepare(folder / "host", None, ()).root
    archive = folder / "debian.tar"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(root, ".")
        for path in sorted(_files(_closure((*PACKAGES, *more)))):
            tar.add(path, path.lstrip("/"), recursive=False)
        for tree in trees:
            if not (root / tree.lstrip("/")).exists():
                tar.add(tree, tree.lstrip("/"))
    return archive


def with_languages(folder: Path) -> Path:
    """`debian`, and what this machine has of Node, Java and Go."""
    programs = [
        os.path.realpath(found) for name in ("node", "java", "javac") if (found := shutil.which(name))
    ]
    owners = [line.partition(":")[0] for line in _dpkg("--search", *programs).splitlines()]
    trees = [str(path) for path in Path("/etc").glob("java-*")]  # Debian's JDK has its settings there
    if compiler := shutil.which("go"):
        root = Path(compiler).resolve().parents[1]
        trees += [str(path) for path in root.iterdir() if path.name not in ("api", "doc", "test")]
    return debian(folder, tuple(owners), trees)


def programs(folder: Path, *names: str) -> Path:
    """A tar archive with nothing but these static programs of this machine, at the top."""
    archive = folder / f"{'-'.join(names)}.tar"
    with tarfile.open(archive, "w") as tar:
        for name in names:
            tar.add(name, Path(name).name)
    return archive


def files(content: dict[str, str | bytes]) -> bytes:
    """A tar archive of executable files; a text that begins with `->` is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, body in content.items():
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if isinstance(body, str) and body.startswith("->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, body.removeprefix("->")
                tar.addfile(entry)
            else:
                raw = body.encode() if isinstance(body, str) else body
                entry.size = len(raw)
                tar.addfile(entry, io.BytesIO(raw))
    return buffer.getvalue()


def _files(packages: set[str]) -> set[str]:
    """What these packages brought below /usr and its kin, where it really lies."""
    told = _dpkg("--listfiles", *sorted(packages))
    found = set()
    for line in told.splitlines():
        if line.startswith(("/usr/", *(f"/{top}/" for top in _TOP))):
            path = str(Path(os.path.realpath(os.path.dirname(line))) / os.path.basename(line))
            if os.path.lexists(path) and not path.startswith(_LEFT_OUT):
                found.add(path)
    return found


def _closure(wanted: tuple[str, ...]) -> set[str]:
    """The packages and all that they depend on, as far as they are installed."""
    depends = {}
    told = _dpkg("--show", "--showformat", "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n")
    provided: dict[str, str] = {}
    for line in told.splitlines():
        package, provides, needs = line.split("\t")
        depends[package] = _alternatives(needs)
        provided.update(dict.fromkeys(_NAME.findall(provides), package))
    found: set[str] = set()
    left = [word.split("|") for word in wanted]
    while left:
        for name in left.pop():
            package = name if name in depends else provided.get(name, "")
            if package in depends:
                if package not in found:
                    found.add(package)
                    left += depends[package]
                break
    return found


def _alternatives(text: str) -> list[list[str]]:
    groups = ([_NAME.match(word.strip()) for word in group.split("|")] for group in text.split(","))
    return [[match.group() for match in group if match] for group in groups]


def _dpkg(*arguments: str) -> str:
    try:
        done = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        cannot_run("images are made of Debian packages, and dpkg-query is not installed")
        raise
    return done.stdout
