# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots on disk: layers that sandboxes wrote, and who needs them. Blocking.

    snapshots/records/<snapshot>   the image and the layers, lowest first, that a snapshot consists of
              layers/<key>/        what one sandbox wrote, as overlayfs left it
              holds/<sandbox>      the same as a record, for a sandbox that was made from one
              memory/<snapshot>/   its processes, where they were kept (gVisor)
              tmp/<snapshot>/      a layer being copied; no record has it yet
              frozen/<sandbox>     this sandbox stands still until its layer is copied

A snapshot of a sandbox that was itself restored adds one layer to those below. A layer goes when no
record and no hold has it any more. One process works here at a time: the server that has its data
directory locked.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from casulo.images.removal import remove_tree
from casulo.images.rooted import sync_file_system
from casulo.model.errors import RuntimeFailure
from casulo.model.snapshot import snapshot_not_found

_FOLDERS = ("records", "layers", "holds", "tmp", "memory", "frozen")
_GONE = ".gone-"


@dataclass(frozen=True)
class Kept:
    """What a snapshot consists of. `ids` says whose numbers its files have (`images.ids.Ids.name`)."""

    image: str
    ids: str
    layers: tuple[str, ...] = ()


class SnapshotShelf:
    """The folder `root` and what is in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()

    def prepare(self, live: Collection[str]) -> None:
        """Make the folders; let go what sandboxes that are not `live` and killed servers left."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _FOLDERS:
            (self._root / name).mkdir(exist_ok=True)
        for hold in (self._root / "holds").iterdir():
            if hold.name not in live:
                hold.unlink()
        for half_written in (self._root / "records").glob(".*"):
            half_written.unlink()
        for unfinished in (self._root / "tmp").iterdir():
            if unfinished.name.startswith(_GONE):
                remove_tree(unfinished)
        self._collect()

    def draft(self, snapshot_id: str) -> Path:
        """Where the layer of a new snapshot is to be copied to; nothing is there yet."""
        return self._root / "tmp" / snapshot_id

    def memory(self, snapshot_id: str) -> Path:
        """Where the memory of a snapshot is, if it has any."""
        return self._root / "memory" / snapshot_id

    def keep(self, snapshot_id: str, below: Kept) -> None:
        """Make the copied layer, on top of those `below`, a snapshot that survives a loss of power."""
        draft = self.draft(snapshot_id)
        _sync(draft)
        key = secrets.token_hex(8)
        with self._lock:
            draft.rename(self._layer(key))
            record = Kept(below.image, below.ids, (*below.layers, key))
            _write(self._root / "records" / snapshot_id, record)
        _sync(self._root)

    def remove(self, snapshot_id: str) -> None:
        """Remove every trace that no sandbox needs. Idempotent."""
        (self._root / "records" / snapshot_id).unlink(missing_ok=True)
        for path in (self.draft(snapshot_id), self.memory(snapshot_id)):
            if path.exists():
                remove_tree(path)
        self._collect()

    def snapshots(self) -> set[str]:
        """Ids with a record or a layer on the way."""
        found = {
            path.name for folder in ("records", "tmp", "memory") for path in (self._root / folder).iterdir()
        }
        return {name for name in found if not name.startswith(".")}

    def hold(self, snapshot_id: str, sandbox_id: str) -> Kept | None:
        """Keep the layers for a sandbox until `release`; None when there is no such snapshot."""
        with self._lock:
            kept = _read(self._root / "records" / snapshot_id)
            if kept is not None:
                _write(self._root / "holds" / sandbox_id, kept)
        return kept

    def held(self, sandbox_id: str) -> Kept | None:
        """What a sandbox was made from, if it was made from a snapshot."""
        return _read(self._root / "holds" / sandbox_id)

    def release(self, sandbox_id: str) -> None:
        """End a hold. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            (self._root / "holds" / sandbox_id).unlink()
            self._collect()

    def kept(self, snapshot_id: str) -> Kept:
        """What a snapshot consists of, or NotFound."""
        found = _read(self._root / "records" / snapshot_id)
        if found is None:
            raise snapshot_not_found(snapshot_id)
        return found

    def places(self, kept: Kept) -> tuple[Path, ...]:
        """The directories of its layers, lowest first."""
        return tuple(map(self._layer, kept.layers))

    def mark_frozen(self, sandbox_id: str) -> None:
        """Leave word for the next server, should this one be killed before `thawed`."""
        (self._root / "frozen" / sandbox_id).touch()

    def frozen(self) -> list[str]:
        """Sandboxes that a killed server may have left standing still."""
        return [mark.name for mark in (self._root / "frozen").iterdir()]

    def thawed(self, sandbox_id: str) -> None:
        """One of them goes on, or is gone."""
        (self._root / "frozen" / sandbox_id).unlink(missing_ok=True)

    def _layer(self, key: str) -> Path:
        return self._root / "layers" / key

    def _collect(self) -> None:
        """Delete layers that nobody has: moved aside in one step, so that none is seen by half."""
        with self._lock:
            users = [path for folder in ("records", "holds") for path in _visible(self._root / folder)]
            needed = {key for path in users if (kept := _read(path)) for key in kept.layers}
            gone = []
            for layer in (self._root / "layers").iterdir():
                if layer.name not in needed:
                    gone.append(self._root / "tmp" / f"{_GONE}{layer.name}")
                    layer.rename(gone[-1])
        for path in gone:
            remove_tree(path)


def _visible(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _read(path: Path) -> Kept | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RuntimeFailure(f"{path} is damaged: {error}", hint="delete the snapshot") from error
    return Kept(body["image"], body["ids"], tuple(body["layers"]))


def _write(path: Path, kept: Kept) -> None:
    """Readers see all of it or nothing."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(asdict(kept)))
    fresh.rename(path)


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)
