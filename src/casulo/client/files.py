# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The files of a sandbox: read, write, look around. Big ones are streamed in both directions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casulo.client.channel import Channel
from casulo.client.multipart import Source, Upload, pieces
from casulo.client.records import FileChange, FileInfo, parse
from casulo.client.stream import Frames
from casulo.client.transport import Answer
from casulo.model.errors import Code, InvalidRequest, NotFound

READ_TIMEOUT = 60.0
Progress = Callable[[int], object]
"""Gets the number of bytes that passed since it was last called; may return an awaitable."""

Mode = int | str
Listing = list[FileInfo]


@dataclass(frozen=True)
class Write:
    """One file to write: what goes in, and who owns it with which mode afterwards."""

    path: str
    data: Source
    mode: Mode | None = None
    owner: str | None = None
    group: str | None = None


class AsyncFiles:
    """The file system of one sandbox. Paths may begin with `~` and hold `$VARIABLES`."""

    def __init__(self, channel: Channel, prefix: str = "") -> None:
        self._channel = channel
        self._prefix = prefix

    def as_user(self, uid: int, gid: int) -> AsyncFiles:
        """The same files, reached with the rights of another user."""
        return AsyncFiles(self._channel, f"/v1/filesystem/{uid}/{gid}")

    async def read(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """A whole file as text."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def read_bytes(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """A file, or its bytes `[start:end]`; a negative `start` counts from the end."""
        async with contextlib.aclosing(self.stream(path, start=start, end=end)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def read_lines(self, path: str, *, offset: int = 1, limit: int | None = None) -> str:
        """`limit` lines from line `offset` on (the first is 1), joined without a last line end."""
        query = [("path", path), ("offset", str(offset))]
        query += [("limit", str(limit))] if limit is not None else []
        answer = await self._call("GET", "/files/download", query=query)
        return answer.body.decode("utf-8", "replace")

    async def stream(
        self, path: str, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A file, or a part of it, in pieces as they arrive."""
        wanted = _range(start, end)
        if wanted is None and end is not None:
            return
        async with self._channel.stream(
            "GET",
            f"{self._prefix}/files/download",
            query=[("path", path)],
            headers={"Range": wanted} if wanted else {},
            read_timeout=READ_TIMEOUT,
        ) as incoming:
            async for chunk in incoming.chunks:
                yield chunk

    async def write(
        self,
        path: str,
        data: Source,
        *,
        mode: Mode | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> None:
        """Write a whole file, replacing what was there; parent directories are made.

        `data` is text, bytes, a file opened for reading, or an (async) iterable of bytes.
        """
        await self.write_many([Write(path, data, mode, owner, group)])

    async def write_many(self, writes: Iterable[Write]) -> None:
        """Write several files in one request."""
        upload = Upload([(w.data, _metadata(w)) for w in writes])
        if not upload:
            return
        await self._channel.request(
            "POST", f"{self._prefix}/files/upload", body=upload.body(), headers=upload.headers()
        )

    async def info(self, path: str) -> FileInfo:
        """One entry; NotFound when there is none."""
        return (await self.info_many([path]))[path]

    async def info_many(self, paths: Sequence[str]) -> dict[str, FileInfo]:
        """Several entries by the path they were asked with; NotFound when one is missing."""
        answer = await self._call("GET", "/files/info", query=[("path", p) for p in paths])
        found = answer.json()
        return {path: parse(FileInfo.read, found.get(path)) for path in paths}

    async def exists(self, path: str) -> bool:
        """Whether there is an entry, of whatever kind; a symbolic link counts even when it leads nowhere."""
        try:
            await self.info(path)
        except NotFound as error:
            if error.code != Code.FILE_NOT_FOUND:  # the sandbox itself may be what is gone
                raise
            return False
        return True

    async def list(self, path: str, *, depth: int = 1) -> Listing:
        """What is in a directory, `depth` levels down, in lexical order."""
        answer = await self._call("GET", "/directories/list", query=[("path", path), ("depth", str(depth))])
        return [parse(FileInfo.read, item) for item in answer.json()]

    async def search(self, path: str, pattern: str = "**") -> Listing:
        """Everything below `path` but directories whose name matches the glob `pattern`."""
        answer = await self._call("GET", "/files/search", query=[("path", path), ("pattern", pattern)])
        return [parse(FileInfo.read, item) for item in answer.json()]

    async def replace(self, path: str, old: str, new: str) -> int:
        """Replace every occurrence of `old`; returns how many there were."""
        answer = await self._call(
            "POST",
            "/files/replace",
            query=[("verbose", "true")],
            content={path: {"old": old, "new": new}},
        )
        return parse(lambda data: int(data[path]["replacedCount"]), answer.json())

    async def move(self, source: str, destination: str) -> None:
        """Move or rename a file or directory; an existing destination is not overwritten."""
        await self._call("POST", "/files/mv", content=[{"src": source, "dest": destination}])

    async def delete(self, *paths: str) -> None:
        """Delete files; those that do not exist are no error."""
        await self._call("DELETE", "/files", query=[("path", p) for p in paths])

    async def chmod(
        self, path: str, mode: Mode | None = None, *, owner: str | None = None, group: str | None = None
    ) -> None:
        """Change mode, owner or group; what is not given stays."""
        await self._call("POST", "/files/permissions", content={path: _rights(mode, owner, group)})

    async def mkdir(
        self, *paths: str, mode: Mode | None = None, owner: str | None = None, group: str | None = None
    ) -> None:
        """Make directories with all their parents; existing ones are no error."""
        rights = _rights(mode, owner, group)
        await self._call("POST", "/directories", content=dict.fromkeys(paths, rights))

    async def rmdir(self, *paths: str) -> None:
        """Remove directories with everything in them; missing ones are no error."""
        await self._call("DELETE", "/directories", query=[("path", p) for p in paths])

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileChange, None]:
        """What changes at or below `path`; the first item says that from now on nothing is missed."""
        async with self._channel.stream(
            "GET",
            f"{self._prefix}/files/watch",
            query=[("path", path), ("recursive", "true" if recursive else "false")],
        ) as incoming:
            frames = Frames()
            async for chunk in incoming.chunks:
                for event in frames.feed(chunk):
                    yield parse(FileChange.read, event)

    async def pack(self, path: str) -> AsyncGenerator[bytes, None]:
        """A directory (names relative to it) or a file as a tar archive, in pieces as they arrive."""
        async with self._channel.stream(
            "GET", f"{self._prefix}/files/tar", query=[("path", path)], read_timeout=READ_TIMEOUT
        ) as incoming:
            async for chunk in incoming.chunks:
                yield chunk

    async def unpack(self, path: str, archive: Source) -> int:
        """Extract a tar archive into a directory, which may be new; returns how many entries it had."""
        answer = await self._channel.request(
            "POST", f"{self._prefix}/files/tar", query=[("path", path)], body=pieces(archive)
        )
        return parse(lambda data: int(data["entries"]), answer.json())

    async def upload(self, local: str | Path, remote: str, *, on_progress: Progress | None = None) -> str:
        """Copy a local file or tree to `remote`, or into it when that is a directory; returns the path."""
        from casulo.client import trees  # brings tarfile and tempfile, which most programs never need

        return await trees.send(self, Path(local), remote, on_progress)

    async def download(self, remote: str, local: str | Path, *, on_progress: Progress | None = None) -> Path:
        """Copy a file or tree to `local`, or into it when that is a directory; returns the path."""
        from casulo.client import trees

        return await trees.fetch(self, remote, Path(local), on_progress)

    async def _call(
        self, method: str, path: str, *, query: Iterable[tuple[str, str]] = (), content: object = None
    ) -> Answer:
        return await self._channel.request(method, self._prefix + path, query=query, content=content)


def octal(mode: Mode) -> int:
    """A mode as the wire writes it: 0o644 and "644" both become the decimal number 644."""
    if isinstance(mode, str):
        digits = mode.removeprefix("0o").lstrip("0") or "0"
    else:
        digits = f"{mode:o}"
        if mode > 0o777 and _looks_octal(mode):
            raise InvalidRequest(
                f"mode {mode} is a decimal number, which means 0o{digits}",
                code=Code.INVALID_PARAMETER,
                hint=f'write 0o{mode} or "{mode}"',
            )
    if len(digits) > 4 or any(digit not in "01234567" for digit in digits):
        raise InvalidRequest(
            f"{mode!r} is not a file mode", code=Code.INVALID_PARAMETER, hint='write 0o644 or "644"'
        )
    return int(digits)


def _looks_octal(mode: int) -> bool:
    return mode <= 777 and all(digit in "01234567" for digit in str(mode))


def _rights(mode: Mode | None, owner: str | None, group: str | None) -> dict[str, Any]:
    given = {"mode": None if mode is None else octal(mode), "owner": owner, "group": group}
    return {name: value for name, value in given.items() if value is not None}


def _metadata(write: Write) -> Mapping[str, Any]:
    return {"path": write.path, **_rights(write.mode, write.owner, write.group)}


def _range(start: int, end: int | None) -> str | None:
    """The Range header of Python's `[start:end]`; None for the whole file, or for nothing at all."""
    if start < 0:
        if end is not None:
            raise InvalidRequest(
                "a negative start reads the end of the file; it takes no end", code=Code.INVALID_PARAMETER
            )
        return f"bytes={start}"
    if end is None:
        return f"bytes={start}-" if start else None
    return f"bytes={start}-{end - 1}" if end > start else None
