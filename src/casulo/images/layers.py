# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Making one unpacked layer: of a blob, of a folder, or of the same layer unpacked for somebody else."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from casulo.images import pack
from casulo.images import unpack as unpacking
from casulo.images.ids import Ids
from casulo.images.shelf import LayerInfo, Shelf
from casulo.images.stream import Stream
from casulo.images.tarstream import Archive, Reader
from casulo.images.unpack import Budget, Tally


@dataclass(frozen=True)
class Made:
    """A finished folder, not yet in its place, and what it was made of."""

    folder: Path
    diff_id: str
    size: int
    raw_digest: str
    tally: Tally

    def info(self, ids: Ids, diff_id: str = "") -> LayerInfo:
        """For the store."""
        tally = self.tally
        return LayerInfo(diff_id or self.diff_id, ids.name, tally.bytes, tally.entries, tally.left_out)


def unpack(
    file: BinaryIO, job: Path, ids: Ids, budget: Budget, on_read: Callable[[int], None] = lambda _: None
) -> Made:
    """Unpack an archive, compressed or not, into a new folder of the job."""
    folder = job / secrets.token_hex(6)
    root = folder / "d"
    root.mkdir(parents=True)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    stream = Stream(file, on_read)
    try:
        tally = unpacking.unpack(Archive(Reader(stream.next_piece)), descriptor, ids, budget)
    finally:
        stream.close()
        os.close(descriptor)
    return Made(folder, stream.plain_digest, stream.plain_size, stream.raw_digest, tally)


def derive(shelf: Shelf, job: Path, diff_id: str, have: Ids, wanted: Ids) -> None:
    """Unpack a layer for other ids from the copy that is there, and keep it."""
    with packed(shelf.layer(diff_id, have), have) as file:
        made = unpack(file, job, wanted, Budget())
    shelf.keep_layer(made.folder, made.info(wanted, diff_id))


@contextmanager
def packed(tree: Path, ids: Ids) -> Iterator[BinaryIO]:
    """A tree as an archive, written by a thread while it is read."""
    reading, writing = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with open(writing, "wb") as out:
                pack.write(tree, ids, out)
        except BaseException as error:  # carried to the reader's thread, whatever it is
            failure.append(error)

    thread = threading.Thread(target=write, name="pack")
    with open(reading, "rb") as file:
        thread.start()
        try:
            yield file
        finally:
            file.close()
            thread.join()
    if failure and not isinstance(failure[0], BrokenPipeError):
        raise failure[0]
