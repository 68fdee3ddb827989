# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Package mirrors for the small internet, made of nothing: one tiny package for each tool."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path


def make(folder: Path) -> None:
    """All of them below `folder`, which is shown as http://good.test/mirror/."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hello.txt").write_text("hello from the mirror\n")
    _pip(folder / "simple" / "tiny")
    _npm(folder)
    _git(folder)
    _apt(folder / "apt")


def _pip(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("tiny.py", "WORD = 'tiny'\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')


def _npm(folder: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in (
            ("package/package.json", '{"name":"tiny","version":"1.0.0","main":"index.js"}'),
            ("package/index.js", "module.exports = 'tiny'\n"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    content = packed.getvalue()
    (folder / "npm").mkdir()
    (folder / "tiny.tgz").write_bytes(content)
    version = {
        "name": "tiny",
        "version": "1.0.0",
        "dist": {
            "tarball": "http://good.test/mirror/tiny.tgz",
            "shasum": hashlib.sha1(content).hexdigest(),
            "integrity": "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode(),
        },
    }
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (folder / "npm" / "tiny").write_text(json.dumps(document))


def _git(folder: Path) -> None:
    work, bare = folder / "work", folder / "tiny.git"
    work.mkdir()

    def git(*words: str) -> None:
        person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *person, *words], cwd=work, check=True, capture_output=True, timeout=30)

    git("init")
    (work / "file").write_text("tiny\n")
    git("add", "file")
    git("commit", "-m", "one")
    git("clone", "--bare", str(work), str(bare))
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True, timeout=30)


def _apt(folder: Path) -> None:
    folder.mkdir()
    packages = (
        "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: a\nDescription: tiny\n"
        f"Filename: ./tiny.deb\nSize: 4\nSHA256: {hashlib.sha256(b'tiny').hexdigest()}\n\n"
    ).encode()
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages))
    (folder / "tiny.deb").write_bytes(b"tiny")
    digest = hashlib.sha256(packages).hexdigest()
    (folder / "Release").write_text(f"SHA256:\n {digest} {len(packages)} Packages\n")
