# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Taking images out of the store, and never one that somebody uses. Blocking."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from casulo.images import locks, reference
from casulo.images.removal import remove_tree
from casulo.images.shelf import Name, Shelf
from casulo.model.errors import Code, Conflict, NotFound

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{6,64})")


@dataclass(frozen=True)
class Pruned:
    """What is gone: names and digests of images, and unpacked layers with their size."""

    names: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    layers: int = 0
    bytes: int = 0


def remove(shelf: Shelf, wanted: str, in_use: frozenset[str]) -> Pruned:
    """Take the name `wanted` away; with an image's last name the image goes."""
    with shelf.job() as job:
        with locks.held(shelf.lock):
            names = list(shelf.names())
            going = _named(names, wanted) or _with_digest(shelf, names, wanted)
            left = [n for n in names if n not in going and not n.implied]
            dying = {n.digest for n in going} - {n.digest for n in left}
            _refuse_used(shelf, dying, in_use)
            pruned = _drop(shelf, job, names, going, dying)
        _delete(job)
    return pruned


def prune(shelf: Shelf, in_use: frozenset[str], unused: bool) -> Pruned:
    """Remove what nothing refers to; with `unused` also images that nobody has in use."""
    with shelf.job() as job:
        with locks.held(shelf.lock):
            shelf.sweep()
            names = list(shelf.names())
            named = {n.digest for n in names if not n.implied}
            using = in_use | {digest for digest, _ in shelf.held().values()}
            dying = {s.digest for s in shelf.all_stored() if unused or s.digest not in named} - using
            going = [n for n in names if n.digest in dying]
            pruned = _drop(shelf, job, names, going, dying)
        _delete(job)
    return pruned


def _named(names: list[Name], wanted: str) -> list[Name]:
    if _DIGEST.fullmatch(wanted) and wanted.startswith("sha256:"):
        return []
    canonical = reference.parse(wanted).canonical
    return [n for n in names if n.name == canonical]


def _with_digest(shelf: Shelf, names: list[Name], wanted: str) -> list[Name]:
    found = _DIGEST.fullmatch(wanted)
    digests = [s.digest for s in shelf.all_stored() if found and s.digest[7:].startswith(found.group(1))]
    if len(digests) != 1:
        raise NotFound(
            f"{'several images have' if digests else 'no image here has'} the name or digest {wanted!r}",
            code=Code.IMAGE_NOT_FOUND,
            hint="`osb image ls` shows what there is",
        )
    matching = [n for n in names if n.digest == digests[0]]
    return matching or [Name("", "", digests[0])]


def _refuse_used(shelf: Shelf, digests: Iterable[str], in_use: frozenset[str]) -> None:
    holders = {holder: digest for holder, (digest, _) in shelf.held().items()}
    for digest in digests:
        by = sorted(holder for holder, held in holders.items() if held == digest)
        if by or digest in in_use:
            raise Conflict(
                f"image {digest} is in use" + (f" by {', '.join(by[:5])}" if by else ""),
                code=Code.IMAGE_IN_USE,
                hint="delete the sandboxes and snapshots that use it first",
            )


def _drop(shelf: Shelf, job: Path, names: list[Name], going: list[Name], dying: set[str]) -> Pruned:
    """The records at once, the layers that nobody needs any more into the job's folder."""
    for name in names:
        if name in going or name.digest in dying:
            shelf.drop_name(name)
    for digest in dying:
        shelf.drop(digest)
    layers, size = 0, 0
    needed = {diff_id for stored in shelf.all_stored() for diff_id in stored.parsed.diff_ids}
    kept = shelf.reserved().union(*(keys for _, keys in shelf.held().values()))
    for key, info in list(shelf.layers()):
        if info.diff_id not in needed and key not in kept:
            shelf.take_away(key, job)
            layers, size = layers + 1, size + info.bytes
    shown = sorted({reference.parse(n.name).familiar for n in going if n.name and not n.implied})
    return Pruned(tuple(shown), tuple(sorted(dying)), layers, size)


def _delete(job: Path) -> None:
    """After the lock is free again: large trees take their time."""
    for place in job.iterdir():
        remove_tree(place) if place.is_dir() else place.unlink()
