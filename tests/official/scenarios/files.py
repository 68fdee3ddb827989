# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Files and directories with the official asynchronous SDK."""

from __future__ import annotations

import hashlib
import io
from datetime import timedelta

from opensandbox.exceptions import SandboxException
from opensandbox.models.filesystem import WriteEntry

from scenarios.context import Context


async def write_and_read(context: Context) -> None:
    text = "first line\nzwölf Boxkämpfer\n"
    async with context.sandbox() as sandbox:
        files = sandbox.files
        await files.write_files(
            [
                WriteEntry(path="/tmp/w/text", data=text, mode=644),
                WriteEntry(path="/tmp/w/bytes", data=b"\x00\xff\x80", mode=755),
                WriteEntry(path="/tmp/w/stream", data=io.BytesIO(b"from a stream"), mode=600),
                WriteEntry(path="/tmp/w/empty", data=b"", mode=644, owner="nobody", group="nogroup"),
            ]
        )
        assert await files.read_file("/tmp/w/text") == text
        assert await files.read_file("/tmp/w/text", range_header="bytes=0-9") == text[:10]
        assert await files.read_bytes("/tmp/w/bytes") == b"\x00\xff\x80"
        streamed = b"".join([chunk async for chunk in await files.read_bytes_stream("/tmp/w/stream")])
        assert streamed == b"from a stream"
        info = await files.get_file_info(["/tmp/w/text", "/tmp/w/empty"])
        assert info["/tmp/w/text"].size == len(text.encode()) and info["/tmp/w/text"].mode == 644
        empty = info["/tmp/w/empty"]
        assert (empty.size, empty.owner, empty.group) == (0, "nobody", "nogroup")
        assert abs(empty.modified_at - empty.created_at) < timedelta(seconds=2)


async def large_file(context: Context) -> None:
    data = hashlib.sha256(b"seed").digest() * (1 << 18)
    async with context.sandbox() as sandbox:
        await sandbox.files.write_file("/tmp/large", data)
        told = await sandbox.commands.run("sha256sum < /tmp/large")
        assert told.logs.stdout[0].text.split()[0] == hashlib.sha256(data).hexdigest()
        assert await sandbox.files.read_bytes("/tmp/large") == data


async def lines(context: Context) -> None:
    async with context.sandbox() as sandbox:
        files = sandbox.files
        await files.write_file("/tmp/five", "".join(f"line{n}\n" for n in range(1, 6)))
        assert await files.read_file("/tmp/five", offset=2, limit=2) == "line2\nline3"
        assert await files.read_file("/tmp/five", offset=4) == "line4\nline5"
        assert await files.read_file("/tmp/five", limit=2) == "line1\nline2"


async def directories(context: Context) -> None:
    async with context.sandbox() as sandbox:
        files = sandbox.files
        await files.create_directories(
            [WriteEntry(path="/tmp/d/one", mode=755), WriteEntry(path="/tmp/d/two", mode=700)]
        )
        info = await files.get_file_info(["/tmp/d/one", "/tmp/d/two"])
        assert (info["/tmp/d/one"].mode, info["/tmp/d/two"].mode) == (755, 700)
        assert info["/tmp/d/one"].owner and info["/tmp/d/one"].group
        listed = await sandbox.commands.run("ls /tmp/d")
        assert [m.text for m in listed.logs.stdout] == ["one", "two"]
        await files.delete_directories(["/tmp/d"])
        gone = await sandbox.commands.run("test ! -e /tmp/d && echo OK")
        assert gone.text == "OK"


async def delete(context: Context) -> None:
    async with context.sandbox() as sandbox:
        files = sandbox.files
        await files.write_files([WriteEntry(path=f"/tmp/del/{n}", data=n) for n in ("a", "b")])
        await files.delete_files(["/tmp/del/a", "/tmp/del/never-there"])
        assert await files.read_file("/tmp/del/b") == "b"
        for call in (files.get_file_info(["/tmp/del/a"]), files.read_file("/tmp/del/a")):
            try:
                await call
            except SandboxException:
                continue
            raise AssertionError("a deleted file was found")
