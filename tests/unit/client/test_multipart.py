# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Upload bodies: whatever the source, the same bytes, with a length whenever there is one."""

from __future__ import annotations

import email
import email.policy
import io
import json
from collections.abc import AsyncIterator
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest

from casulo.client.multipart import CHUNK, Source, Upload

TEXT = "grüße\r\n--x--\n" * 3
BYTES = TEXT.encode()


async def _async_pieces() -> AsyncIterator[bytes]:
    yield BYTES[:5]
    yield BYTES[5:]


def _file(tmp_path: Path, *, text: bool) -> Source:
    place = tmp_path / "source"
    place.write_bytes(BYTES)
    return cast(Source, place.open(encoding="utf-8", newline="") if text else place.open("rb"))


async def parts_of(upload: Upload) -> list[EmailMessage]:
    headers = upload.headers()
    body = b"".join([piece async for piece in upload.body()])
    if "Content-Length" in headers:
        assert len(body) == int(headers["Content-Length"])
    message = email.message_from_bytes(
        b"Content-Type: " + headers["Content-Type"].encode() + b"\r\n\r\n" + body, policy=email.policy.HTTP
    )
    return cast(list[EmailMessage], message.get_payload())


@pytest.mark.parametrize("kind", ["text", "bytes", "view", "memory", "binary", "chars", "pieces", "async"])
async def test_every_source_arrives_whole(kind: str, tmp_path: Path) -> None:
    sources: dict[str, Source] = {
        "text": TEXT,
        "bytes": BYTES,
        "view": memoryview(BYTES),
        "memory": io.BytesIO(BYTES),
        "binary": _file(tmp_path, text=False),
        "chars": _file(tmp_path, text=True),
        "pieces": [BYTES[:7], BYTES[7:]],
        "async": _async_pieces(),
    }
    upload = Upload([(sources[kind], {"path": "/a"})])
    assert ("Content-Length" in upload.headers()) == (kind not in ("chars", "pieces", "async"))
    metadata, content = await parts_of(upload)
    assert json.loads(metadata.get_payload(decode=True)) == {"path": "/a"}
    assert content.get_payload(decode=True) == BYTES
    for source in sources.values():
        if isinstance(source, io.IOBase):
            source.close()


async def test_a_file_counts_from_where_it_stands() -> None:
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    _, content = await parts_of(Upload([(file, {"path": "/a"})]))
    assert content.get_payload(decode=True) == b"456789"


async def test_several_files_and_empty_ones() -> None:
    big = b"x" * (CHUNK + 1)
    upload = Upload([(b"", {"path": "/empty"}), (big, {"path": "/big"})])
    parts = await parts_of(upload)
    assert [part.get_filename() for part in parts] == ["metadata", "file", "metadata", "file"]
    assert [part.get_payload(decode=True) for part in parts[1::2]] == [b"", big]
