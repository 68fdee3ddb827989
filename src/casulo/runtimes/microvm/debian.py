# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Taking a package of Debian apart without installing it."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from casulo.model.errors import Code, InvalidRequest

_MAGIC = b"!<arch>\n"
_HEADER = 60


def files(package: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names without a leading dot and slash, and contents, of the regular files that are `wanted`."""
    try:
        with (
            package.open("rb") as file,
            _data(file) as data,
            tarfile.open(fileobj=data, mode="r|") as archive,
        ):
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isreg() and wanted(name):
                    content = archive.extractfile(member)
                    yield name, content.read() if content else b""
    except (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError) as error:
        raise InvalidRequest(
            f"{package} is not a Debian package that can be read: {error}", code=Code.INVALID_PARAMETER
        ) from error


def _data(file: BinaryIO) -> IO[bytes]:
    """The archive of files inside the package, which is an archive of three members."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as one")
    while header := file.read(_HEADER):
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        if name == "data.tar.xz":
            return lzma.open(io.BytesIO(file.read(size)))
        if name == "data.tar":
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError("it has no data.tar.xz")
