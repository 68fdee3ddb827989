# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Copies of local files and whole trees into a sandbox and out of it, as one tar stream each way.

Where a copy ends is decided as `cp -r` does: into an existing directory, else under the name given. What
comes out of a sandbox is not trusted: nothing is written outside the destination, no devices, no setuid bits.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from casulo.client.multipart import CHUNK, Readable
from casulo.client.staging import staged
from casulo.model.errors import Code, InvalidRequest, NotFound, RuntimeFailure, Unsupported

if TYPE_CHECKING:
    from casulo.client.files import AsyncFiles, Progress


async def send(files: AsyncFiles, local: Path, remote: str, on_progress: Progress | None) -> str:
    """Copy a local file or tree; returns the path that it got."""
    place = PurePosixPath(remote)
    if remote.endswith("/") or await _is_directory(files, remote):
        place /= local.resolve().name
    try:
        if local.is_dir():
            await _send_tree(files, local, place, on_progress)
        else:
            with local.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                await files.write(str(place), _counted(file, on_progress), mode=mode)
    except FileNotFoundError as error:
        raise InvalidRequest(str(error), code=Code.INVALID_PARAMETER) from error
    return str(place)


async def fetch(files: AsyncFiles, remote: str, local: Path, on_progress: Progress | None) -> Path:
    """Copy a remote file or tree; returns the path that it got."""
    info = await files.info(remote)
    place = local / PurePosixPath(info.path).name if local.is_dir() else local
    place.parent.mkdir(parents=True, exist_ok=True)
    if info.type == "directory":
        await _fetch_tree(files, remote, place, on_progress)
        return place
    with staged(place) as file:
        async with aclosing(files.stream(remote)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
                await _tell(on_progress, len(chunk))
    return place


async def _send_tree(
    files: AsyncFiles, local: Path, place: PurePosixPath, on_progress: Progress | None
) -> None:
    reading, writing = os.pipe()
    packing = asyncio.create_task(asyncio.to_thread(_pack, local, place.name, writing))
    try:
        with open(reading, "rb", buffering=0) as archive:
            await files.unpack(str(place.parent), _counted(archive, on_progress))
    finally:
        # With nobody left to read, a packer that is not through ends with a broken pipe.
        outcome = (await asyncio.gather(packing, return_exceptions=True))[0]
    if isinstance(outcome, BaseException):
        raise outcome


async def _fetch_tree(files: AsyncFiles, remote: str, place: Path, on_progress: Progress | None) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise Unsupported("this Python cannot unpack safely", hint="use Python 3.11.4 or newer")
    reading, writing = os.pipe()
    unpacking = asyncio.create_task(asyncio.to_thread(_unpack, reading, place))
    try:
        with open(writing, "wb", buffering=0) as archive:
            async with aclosing(files.pack(remote)) as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(_write_all, archive, chunk)
                    await _tell(on_progress, len(chunk))
    except BrokenPipeError:
        pass  # the unpacker saw the end, or gave up, and its own error says why
    finally:
        outcome = (await asyncio.gather(unpacking, return_exceptions=True))[0]
    if isinstance(outcome, BaseException):
        raise outcome


def size_of(local: Path) -> int:
    """The bytes in a local file or tree, for those who show progress."""
    if not local.is_dir():
        return local.stat().st_size
    return sum(
        entry.stat(follow_symlinks=False).st_size
        for folder, _, _ in os.walk(local)
        for entry in os.scandir(folder)
        if entry.is_file(follow_symlinks=False)
    )


async def _is_directory(files: AsyncFiles, path: str) -> bool:
    try:
        return (await files.info(path)).type == "directory"
    except NotFound as error:
        if error.code != Code.FILE_NOT_FOUND:
            raise
        return False


async def _counted(archive: Readable, on_progress: Progress | None) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(archive.read, CHUNK):
        yield chunk if isinstance(chunk, bytes) else chunk.encode()
        await _tell(on_progress, len(chunk))


async def _tell(on_progress: Progress | None, count: int) -> None:
    answer = on_progress(count) if on_progress is not None else None
    if inspect.isawaitable(answer):
        await answer


def _pack(local: Path, name: str, writing: int) -> None:
    """Runs in a thread."""
    with (
        open(writing, "wb", buffering=CHUNK) as pipe,
        tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as archive,
    ):
        archive.add(local, arcname=name)


def _unpack(reading: int, place: Path) -> None:
    """Runs in a thread."""
    try:
        with (
            open(reading, "rb", buffering=0) as pipe,
            tarfile.open(fileobj=pipe, mode="r|", bufsize=CHUNK) as archive,
        ):
            place.mkdir(exist_ok=True)
            left_out: list[str] = []
            archive.extractall(place, filter=lambda member, path: _plain(member, path, left_out))
    except tarfile.FilterError as error:
        raise RuntimeFailure(f"refused to unpack: {error}", code=Code.INVALID_PARAMETER) from error
    if left_out:
        raise RuntimeFailure(
            f"copied all but {len(left_out)} pipes, sockets or devices: {', '.join(left_out[:10])}",
            code=Code.INVALID_PARAMETER,
            hint="they mean nothing outside the sandbox; remove them there to copy without this error",
        )


def _plain(member: tarfile.TarInfo, path: str, left_out: list[str]) -> tarfile.TarInfo | None:
    """What may be unpacked; what is no file, directory or link is noted and skipped."""
    if member.isfile() or member.isdir() or member.issym() or member.islnk():
        return tarfile.data_filter(member, path)
    left_out.append(member.name)
    return None


def _write_all(pipe: RawIOBase, data: bytes) -> None:
    """A pipe may take less than it is offered."""
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) or 0 :]
