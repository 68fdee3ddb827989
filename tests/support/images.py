# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Images made for tests, byte by byte: archives no tool would write, in layouts that any tool reads."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.machine import cannot_run

FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def member(
    name: str | bytes,
    content: bytes = b"",
    *,
    kind: bytes = FILE,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 1_000_000_000,
    target: str | bytes = b"",
    pax: Mapping[str, bytes | str] | None = None,
    size: int | None = None,
) -> bytes:
    """One member of an archive. Long names go into a pax header, as do the records in `pax`."""
    raw, link = _bytes(name), _bytes(target)
    records = {key: _bytes(value) for key, value in (pax or {}).items()}
    if len(raw) > 100:
        records.setdefault("path", raw)
    if len(link) > 100:
        records.setdefault("linkpath", link)
    header = _header(raw, kind, len(content) if size is None else size, mode, uid, gid, mtime, link)
    return extension(records) + header + _padded(content)


def folder(name: str | bytes, mode: int = 0o755, **more: Any) -> bytes:
    """A directory member."""
    return member(name, kind=DIRECTORY, mode=mode, **more)


def link(name: str | bytes, target: str | bytes, **more: Any) -> bytes:
    """A symbolic link."""
    return member(name, kind=SYMLINK, mode=0o777, target=target, **more)


def hard_link(name: str | bytes, target: str | bytes) -> bytes:
    """Another name for a file of the same archive."""
    return member(name, kind=HARD_LINK, target=target)


def extension(records: Mapping[str, bytes], flag: bytes = b"x") -> bytes:
    """A pax header for the next member, or with flag `g` for all that follow."""
    body = b"".join(_record(key.encode(), value) for key, value in records.items())
    return _header(b"pax", flag, len(body)) + _padded(body) if records else b""


def gnu_long(flag: bytes, text: bytes) -> bytes:
    """GNU's way to a long name (L) or link target (K)."""
    return _header(b"././@LongLink", flag, len(text) + 1) + _padded(text + b"\0")


def archive(*members: bytes) -> bytes:
    """The members and the two empty blocks that end an archive."""
    return b"".join(members) + bytes(1024)


def busybox(*names: str) -> bytes:
    """A layer with a small Unix: one static program under several `names`, users, and a folder for each."""
    program = shutil.which("busybox")
    if program is None:
        cannot_run("busybox is not installed")
        raise AssertionError
    programs = ("sh", "cat", "ls", "sleep", "tail", "id", "env", *names)
    passwd = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
    return archive(
        folder("bin"),
        member("bin/busybox", Path(program).read_bytes(), mode=0o755),
        *(link(f"bin/{name}", "busybox") for name in programs),
        folder("etc"),
        member("etc/passwd", passwd),
        member("etc/group", b"root:x:0:\napp:x:1000:\n"),
        folder("home/app", uid=1000, gid=1000),
        folder("root", mode=0o700),
        folder("tmp", mode=0o1777),
    )


def _header(
    name: bytes,
    kind: bytes,
    size: int,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    link: bytes = b"",
) -> bytes:
    fields = [
        name[:100].ljust(100, b"\0"),
        *(_octal(value, 8) for value in (mode, uid, gid)),
        _octal(size, 12),
        _octal(mtime, 12),
        b" " * 8,
        kind,
        link[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    ]
    block = b"".join(fields).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _octal(value: int, width: int) -> bytes:
    if value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return b"\x80" + value.to_bytes(width - 1, "big")


def _record(key: bytes, value: bytes) -> bytes:
    text = b" " + key + b"=" + value + b"\n"
    length = len(text) + len(str(len(text)))
    while len(str(length)) + len(text) != length:
        length += 1
    return str(length).encode() + text


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@dataclass
class ImageParts:
    """What an image is made of; `layers` are archives, stored as `pack` makes them."""

    layers: Sequence[bytes]
    config: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = "amd64"
    system: str = "linux"
    compress: bool = True


class LayoutWriter:
    """An OCI image layout in `folder`, one image or list of images for each tag."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._tags: list[dict[str, Any]] = []

    def add(self, tag: str, parts: ImageParts) -> str:
        """Write one image; its digest."""
        described = self._image(parts)
        self._tag(tag, described)
        return str(described["digest"])

    def add_list(self, tag: str, *images: ImageParts) -> str:
        """Write images for several platforms under one tag; the digest of the list."""
        manifests = [
            {**self._image(i), "platform": {"os": i.system, "architecture": i.architecture}} for i in images
        ]
        described = self.json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}, INDEX)
        self._tag(tag, described)
        return str(described["digest"])

    def blob(self, content: bytes, kind: str = "application/octet-stream") -> dict[str, Any]:
        """Write a blob; its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def json(self, body: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Write an object as a blob; its descriptor."""
        return self.blob(json.dumps(body).encode(), kind)

    def reference(self, tag: str) -> str:
        """How the store is asked for it."""
        return f"oci:{self.folder}:{tag}"

    def _image(self, parts: ImageParts) -> dict[str, Any]:
        config = {
            "architecture": parts.architecture,
            "os": parts.system,
            "created": "2020-01-02T03:04:05Z",
            "config": dict(parts.config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in parts.layers]},
        }
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if parts.compress else "")
        packed = [gzip.compress(layer, 1, mtime=0) if parts.compress else layer for layer in parts.layers]
        return self.json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.json(config, "application/vnd.oci.image.config.v1+json"),
                "layers": [self.blob(layer, kind) for layer in packed],
            },
            MANIFEST,
        )

    def _tag(self, tag: str, descriptor: dict[str, Any]) -> None:
        self._tags.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": tag}})
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self._tags}))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
