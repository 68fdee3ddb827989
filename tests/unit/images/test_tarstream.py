# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The archive reader against what real programs write, and against damage."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import random
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from casulo.images.stream import Stream
from casulo.images.tarstream import Archive, Kind, Reader
from casulo.model.errors import CasuloError, InvalidRequest
from support.images import archive, extension, folder, gnu_long, member

from .conftest import Unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SMALL = archive(folder("d"), member("d/f", b"hello " * 5000))


def names(content: bytes) -> list[bytes]:
    stream = Stream(io.BytesIO(content))
    try:
        return [entry.name for entry in Archive(Reader(stream.next_piece))]
    finally:
        stream.close()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_form_of_the_standard_library_is_read(root: Path, unpacked: Unpack, form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as out:
        for name, target in (("a" * 90 + "/" + "b" * 90, ""), ("link", "t" * 90)):
            info = tarfile.TarInfo(name)
            info.mtime = 1_234_567_890
            if target:
                info.type, info.linkname = tarfile.SYMTYPE, target
                out.addfile(info)
            else:
                info.size = 5
                out.addfile(info, io.BytesIO(b"hello"))
    unpacked(buffer.getvalue())
    assert (root / ("a" * 90) / ("b" * 90)).read_text() == "hello"
    assert os.readlink(root / "link") == "t" * 90


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "pax", "posix", "ustar", "v7"])
def test_what_tar_writes_is_read(root: Path, unpacked: Unpack, tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/file").write_text("content")
    (source / "hard").hardlink_to(source / "deep/er/file")
    (source / "soft").symlink_to("deep")
    done = subprocess.run(
        ["tar", f"--format={form}", "-C", source, "-cf", "-", "."], check=True, capture_output=True
    )
    unpacked(done.stdout)
    assert (root / "soft/er/file").read_text() == "content"
    assert (root / "hard").stat().st_nlink == 2


@pytest.mark.parametrize(
    "form", ["gnu", "pax --sparse-version=0.0", "pax --sparse-version=0.1", "pax --sparse-version=1.0"]
)
def test_sparse_files_keep_their_holes(root: Path, unpacked: Unpack, tmp_path: Path, form: str) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        for offset in range(0, 60 << 20, 1 << 20):
            file.seek(offset)
            file.write(b"island at %d" % offset)
        file.truncate(64 << 20)
    command = ["tar", *f"--format={form}".split(), "--sparse", "-C", tmp_path, "-cf", "-", "sparse"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(packed) < 8 << 20
    unpacked(packed)
    assert (root / "sparse").read_bytes() == source.read_bytes()
    assert (root / "sparse").stat().st_blocks * 512 < 8 << 20


@pytest.mark.parametrize(
    "compress",
    [lambda raw: raw, gzip.compress, zstd.compress, bz2.compress, lzma.compress],
    ids=["plain", "gzip", "zstd", "bzip2", "xz"],
)
def test_every_compression_is_read_and_must_be_whole(compress: object) -> None:
    packed: bytes = compress(SMALL)  # type: ignore[operator]
    assert names(packed) == [b"d", b"d/f"]
    for cut in (len(packed) // 2, len(packed) - 1200 if packed is SMALL else len(packed) - 5):
        with pytest.raises(InvalidRequest):
            names(packed[:cut])


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_several_members_are_one_archive(compress: object) -> None:
    pieces = [SMALL[at : at + 700] for at in range(0, len(SMALL), 700)]
    packed = b"".join(compress(piece) for piece in pieces)  # type: ignore[operator]
    assert names(packed) == [b"d", b"d/f"]
    assert names(gzip.compress(SMALL) + bytes(1000)) == [b"d", b"d/f"]


def test_digests_are_of_the_blob_and_of_the_archive() -> None:
    packed = gzip.compress(SMALL)
    stream = Stream(io.BytesIO(packed))
    list(Archive(Reader(stream.next_piece)))
    stream.close()
    assert stream.raw_digest == "sha256:" + hashlib.sha256(packed).hexdigest()
    assert stream.plain_digest == "sha256:" + hashlib.sha256(SMALL).hexdigest()
    assert (stream.raw_size, stream.plain_size) == (len(packed), len(SMALL))


def test_garbage_behind_a_member_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        names(gzip.compress(SMALL) + b"garbage")


def test_what_follows_the_end_counts_for_the_digest_only() -> None:
    assert names(SMALL + b"anything") == [b"d", b"d/f"]


def test_long_names_of_both_kinds() -> None:
    long = b"n" * 200
    content = archive(gnu_long(b"L", long), member("short", b"1"), member(long + b"2", b""))
    assert names(content) == [long, long + b"2"]


def test_large_numbers() -> None:
    stream = Stream(io.BytesIO(archive(member("f", b"", uid=1 << 40, mtime=1 << 36))))
    entry = next(iter(Archive(Reader(stream.next_piece))))
    stream.close()
    assert (entry.uid, entry.mtime_ns, entry.kind) == (1 << 40, (1 << 36) * 10**9, Kind.FILE)


def broken(at: int, value: bytes) -> bytes:
    """The second member's header with a byte changed and a correct checksum."""
    content = bytearray(SMALL)
    content[512 + at : 512 + at + len(value)] = value
    block = content[512:1024]
    block[148:156] = b" " * 8
    content[660:668] = b"%06o\0 " % sum(block)
    return bytes(content)


def sparse(**records: str) -> bytes:
    """An archive of one member with these records."""
    return archive(member("f", b"x" * 100, pax={f"GNU.sparse.{key}": text for key, text in records.items()}))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (SMALL[:700], "middle of a member"),
        (SMALL[:2000], "middle of a member"),
        (SMALL[:600] + b"\x01" + SMALL[601:], "checksum"),
        (broken(124, b"99999999999\0"), "no octal number"),
        (broken(124, b"\xff" * 12), "out of range"),
        (broken(108, b"\xff" * 8), "out of range"),
        (broken(156, b"V"), "unknown type"),
        (SMALL[:512] + bytes(512) + SMALL[512:], "data after an empty block"),
        (archive(extension({"a": b"1"})), "after an extended header"),
        (archive(extension({"comment": b"x" * (2 << 20)}), member("f")), "extended headers of"),
        (archive(*[extension({"comment": b"x" * 300_000})] * 4, member("f")), "extended headers of"),
        (archive(member("f", pax={"size": "-1"})), "no size"),
        (archive(member("f", pax={"size": "1e9"})), "no size"),
        (archive(member("f", pax={"mtime": "soon"})), "no time"),
        (archive(member("f", b"", size=1 << 40)), "middle of a member"),
        (sparse(map="0,600", size="600"), "does not fit"),
        (sparse(map="0,9,5,9", size="99"), "overlap"),
        (sparse(map="0", size="99"), "without a length"),
        (sparse(map="x", size="99"), "no number"),
        (sparse(major="1", minor="0"), "ends before its map"),
        (b"not an archive at all" * 100, "checksum|octal"),
    ],
)  # fmt: skip
def test_damage_is_found_and_explained(content: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        names(content)


def test_wrong_pax_records_are_refused() -> None:
    good = extension({"path": b"abc"})
    for old, new in ((b"12 path", b"13 path"), (b"12 path=", b"12 pathX"), (b"12 ", b"xx ")):
        assert old in good
        with pytest.raises(InvalidRequest, match="pax record"):
            names(archive(good.replace(old, new), member("f")))


def test_random_damage_never_gets_past_as_something_else() -> None:
    """Whatever is flipped, the answer is a typed error or a list of names."""
    dice = random.Random(7)
    for _ in range(400):
        content = bytearray(archive(extension({"path": b"p" * 120}), member("f", b"data"), member("g", b"")))
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        try:
            names(bytes(content))
        except CasuloError:
            continue


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    stream = Stream(io.BytesIO(gzip.compress(bytes(64 << 20))))
    stream.next_piece()
    stream.close()
    assert not any(thread.name == "unpack-ahead" for thread in threading.enumerate())
