# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Images that are made here: of a root file system, or of a layer on top of an image that is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from casulo.images import layers, locks, manifest
from casulo.images.config import ImageConfig
from casulo.images.ids import Ids
from casulo.images.layers import Made
from casulo.images.pull import keep, now, platform_text
from casulo.images.reference import Reference
from casulo.images.report import Report
from casulo.images.shelf import Name, Shelf, Stored, layer_key
from casulo.images.unpack import Budget
from casulo.model.errors import Code, InvalidRequest, NotFound
from casulo.model.sandbox import Platform


@dataclass(frozen=True)
class Job:
    """`source` is a folder or an archive.

    `base` is the digest of an image whose layers stay below; `tree_ids` is how a folder's files are owned.
    """

    source: str
    name: Reference
    config: ImageConfig
    platform: Platform
    ids: Ids
    limit_bytes: int
    tree_ids: Ids
    base: str = ""


def run(shelf: Shelf, place: Path, job: Job, report: Report) -> str:
    """The digest of the new image."""
    below = _layers_of(shelf, job)
    with _opened(job) as (file, total):
        report.plan(1, 0, total)
        made = layers.unpack(file, place, job.ids, Budget(job.limit_bytes), report.read)
    if not made.tally.entries and not job.base:
        raise InvalidRequest(f"{job.source} holds no files", code=Code.IMAGE_INVALID)
    shelf.reserve(place, [layer_key(diff_id, job.ids) for diff_id, _ in (*below, (made.diff_id, 0))])
    _keep_layer(shelf, made, job.ids)
    report.layer_done()
    outer, inner = manifest.composed(job.config, job.platform, [*below, (made.diff_id, made.size)])
    digest = manifest.digest_of(outer)
    name = Name(job.name.canonical, platform_text(job.platform), digest)
    keep(shelf, Stored(digest, outer.decode(), inner.decode(), now()), [name])
    return digest


def derive(shelf: Shelf, place: Path, digest: str, ids: Ids, report: Report) -> str:
    """Unpack an image that is here for other ids, too."""
    stored = shelf.stored(digest)
    if stored is None:
        raise _not_here(digest)
    diff_ids = list(dict.fromkeys(stored.parsed.diff_ids))
    with locks.held(shelf.lock, shared=True):
        shelf.reserve(place, [layer_key(diff_id, ids) for diff_id in diff_ids])
    report.plan(len(diff_ids), 0, 0)
    for diff_id in diff_ids:
        with shelf.lock_layer(diff_id, ids):
            copy = shelf.other_copy(diff_id, ids)
            if shelf.layer_info(diff_id, ids) is None and copy is not None:
                layers.derive(shelf, place, diff_id, copy, ids)
        report.layer_done()
    return digest


def _layers_of(shelf: Shelf, job: Job) -> list[tuple[str, int]]:
    if not job.base:
        return []
    stored = shelf.stored(job.base)
    if stored is None:
        raise _not_here(job.base)
    outer = manifest.parse(stored.manifest.encode())
    assert isinstance(outer, manifest.Manifest)
    sizes = [layer.size for layer in outer.layers]
    return list(zip(stored.parsed.diff_ids, sizes, strict=True))


def _keep_layer(shelf: Shelf, made: Made, ids: Ids) -> None:
    with shelf.lock_layer(made.diff_id, ids):
        if shelf.layer_info(made.diff_id, ids) is None:
            shelf.keep_layer(made.folder, made.info(ids))


def _not_here(digest: str) -> NotFound:
    return NotFound(f"no image {digest} is in the store", code=Code.IMAGE_NOT_FOUND)


@contextmanager
def _opened(job: Job) -> Iterator[tuple[BinaryIO, int]]:
    """(the archive, its size or 0)."""
    try:
        status = os.stat(job.source)
    except OSError as error:
        raise InvalidRequest(f"{job.source}: {error.strerror}", code=Code.INVALID_PARAMETER) from None
    if stat.S_ISDIR(status.st_mode):
        with layers.packed(Path(job.source), job.tree_ids) as file:
            yield file, 0
    else:
        with open(job.source, "rb") as file:
            yield file, status.st_size
