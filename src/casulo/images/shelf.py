# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The image store on disk: where everything is, and how it gets there in one piece. Blocking.

    images/lock              shared while something is added, exclusive while something is removed
           names/<key>       one name on one platform: which manifest it stands for
           manifests/<hex>   manifest and configuration of one image, word for word
           l/<key>/layer     what the unpacked layer in l/<key>/d is; there only when it is complete
           holds/<holder>    what somebody, such as a sandbox, is using
           tmp/<job>/        work in progress, locked by its process; what is not locked is left over

A layer is unpacked below tmp, synced, and renamed; a name is written last. Keys of layers are short
since the kernel takes the paths of all layers of an image in one page.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from casulo.images import ids as identities
from casulo.images import locks, rooted
from casulo.images.ids import Ids
from casulo.images.manifest import Configuration, Manifest, parse, parse_configuration
from casulo.images.removal import remove_tree
from casulo.model.errors import RuntimeFailure

MOST_LAYERS = 110
"""Layers of one image: so many paths of this length fit into the options of an overlay mount."""

_FOLDERS = ("names", "manifests", "l", "holds", "tmp", "locks")


@dataclass(frozen=True)
class LayerInfo:
    """One unpacked layer. `left_out` says what of it is not on disk."""

    diff_id: str
    ids: str
    bytes: int
    entries: int
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """One image, as its publisher wrote it."""

    digest: str
    manifest: str
    configuration: str
    stored_at: str = ""

    @property
    def parsed(self) -> Configuration:
        """The configuration, understood."""
        outer = parse(self.manifest.encode())
        assert isinstance(outer, Manifest)
        return parse_configuration(self.configuration.encode(), outer)


@dataclass(frozen=True)
class Name:
    """A reference in canonical spelling, for one platform, and the digest it stands for.

    Nobody asked for an `implied` one; it is the same image by digest, and goes when the others go.
    """

    name: str
    platform: str
    digest: str
    implied: bool = False


class Shelf:
    """The folder `root` and what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.tmp = root / "tmp"

    def prepare(self) -> None:
        """Make the folders. Nobody else may go in: files keep their owners' setuid bits."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for name in _FOLDERS:
            (self.root / name).mkdir(exist_ok=True)

    # Layers

    def layer(self, diff_id: str, ids: Ids) -> Path:
        """Where the unpacked layer is, or would be."""
        return self.root / "l" / layer_key(diff_id, ids) / "d"

    def layer_info(self, diff_id: str, ids: Ids) -> LayerInfo | None:
        """None unless the layer is there, completely."""
        body = _read(self.layer(diff_id, ids).parent / "layer")
        if body is None:
            return None
        info = LayerInfo(**body)
        if info.diff_id != diff_id:
            raise RuntimeFailure(f"two layers share the key {layer_key(diff_id, ids)}")
        return info

    def layers(self) -> Iterator[tuple[str, LayerInfo]]:
        """(key, layer) of everything that is unpacked."""
        for place in _visible(self.root / "l"):
            body = _read(place / "layer")
            if body is not None:
                yield place.name, LayerInfo(**body)

    def other_copy(self, diff_id: str, wanted: Ids) -> Ids | None:
        """For whom the layer is unpacked already, if not for `wanted`, with its ids still known."""
        for _, info in self.layers():
            if info.diff_id == diff_id and info.ids not in (wanted.name, "user"):
                return identities.parse(info.ids)
        return None

    def empty_layer(self, ids: Ids) -> Path:
        """For images without layers: overlayfs wants at least one."""
        place = self.root / "l" / f"empty-{ids.name}"
        place.mkdir(exist_ok=True)
        os.chown(place, *ids.owner(0, 0, b"/"))
        return place

    def lock_layer(self, diff_id: str, ids: Ids) -> contextlib.AbstractContextManager[None]:
        """Held by the one who unpacks it."""
        return locks.held_while_there(self.root / "locks" / layer_key(diff_id, ids))

    def keep_layer(self, built: Path, info: LayerInfo) -> None:
        """Move the finished folder (with `d` in it) to its place, once it is on disk for good."""
        _write(built / "layer", asdict(info), durable=False)
        descriptor = os.open(built, os.O_RDONLY | os.O_DIRECTORY)
        try:
            rooted.sync_file_system(descriptor)
        finally:
            os.close(descriptor)
        place = self.layer(info.diff_id, identities.parse(info.ids)).parent
        try:
            built.rename(place)
        except OSError:
            if not (place / "layer").is_file():  # else somebody was quicker, and ours goes with its job
                raise
        _sync_directory(place.parent)

    def take_away(self, key: str, job: Path) -> None:
        """Move a layer into the folder of a job, in one step, to be deleted there."""
        (self.root / "l" / key).rename(job / key)

    # Images and their names

    def stored(self, digest: str) -> Stored | None:
        """The image with this digest."""
        body = _read(self._manifest(digest))
        return Stored(**body) if body is not None else None

    def all_stored(self) -> Iterator[Stored]:
        """Every image."""
        for path in _visible(self.root / "manifests"):
            if (body := _read(path)) is not None:
                yield Stored(**body)

    def store(self, image: Stored) -> None:
        """Keep an image whose layers are there."""
        _replace(self._manifest(image.digest), asdict(image))

    def drop(self, digest: str) -> None:
        """Forget an image; its layers stay until the next prune."""
        self._manifest(digest).unlink(missing_ok=True)

    def digest_of(self, name: str, platform: str) -> str | None:
        """What a name stands for."""
        body = _read(self._name(name, platform))
        return Name(**body).digest if body is not None else None

    def names(self) -> Iterator[Name]:
        """Every name."""
        for path in _visible(self.root / "names"):
            if (body := _read(path)) is not None:
                yield Name(**body)

    def set_name(self, name: Name) -> None:
        """Let a name stand for this image from now on."""
        if name.implied and self._name(name.name, name.platform).exists():
            return  # a digest stands for the same image always; it may have been asked for
        _replace(self._name(name.name, name.platform), asdict(name))

    def drop_name(self, name: Name) -> None:
        """Forget a name."""
        self._name(name.name, name.platform).unlink(missing_ok=True)

    def _manifest(self, digest: str) -> Path:
        return self.root / "manifests" / digest.removeprefix("sha256:")

    def _name(self, name: str, platform: str) -> Path:
        return self.root / "names" / hashlib.sha256(f"{name}\n{platform}".encode()).hexdigest()

    # Holds

    def hold(self, holder: str, digest: str, keys: Iterable[str], owner: str) -> None:
        """Keep an image and its layers from being removed until `release`; `owner` is whose holder it is."""
        body = {"digest": digest, "layers": list(keys), "owner": owner}
        _replace(self.root / "holds" / _file_name(holder), body, durable=False)

    def release(self, holder: str) -> None:
        """End a hold. Idempotent."""
        (self.root / "holds" / _file_name(holder)).unlink(missing_ok=True)

    def release_all_but(self, live: Collection[str], owner: str) -> None:
        """End the holds of an owner's holders that are gone."""
        for path in _visible(self.root / "holds"):
            body = _read(path)
            if body is not None and body.get("owner") == owner and path.name not in live:
                path.unlink(missing_ok=True)

    def held(self) -> dict[str, tuple[str, frozenset[str]]]:
        """By holder: digest and keys of layers."""
        found = {}
        for path in _visible(self.root / "holds"):
            if (body := _read(path)) is not None:
                found[path.name] = (str(body["digest"]), frozenset(body["layers"]))
        return found

    # Jobs

    @contextmanager
    def job(self) -> Iterator[Path]:
        """A folder for work in progress; it goes away with its job, or with the next sweep."""
        place = self.tmp / secrets.token_hex(8)
        with locks.held(self.lock, shared=True):  # no sweep between the two steps
            place.mkdir(mode=0o700)
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield place
        finally:
            with contextlib.suppress(OSError):  # the next sweep tries again
                remove_tree(place)
            os.close(descriptor)

    def reserve(self, job: Path, keys: Iterable[str]) -> None:
        """Say which layers a job counts on, so that nobody removes them meanwhile."""
        _replace(job / "layers", {"layers": list(keys)}, durable=False)

    def reserved(self) -> frozenset[str]:
        """Layers that running jobs count on."""
        found: set[str] = set()
        for job in self.tmp.iterdir():
            body = _read(job / "layers")
            found.update(body["layers"] if body is not None else ())
        return frozenset(found)

    def sweep(self) -> None:
        """Remove what killed processes left behind. Under the exclusive lock."""
        for job in self.tmp.iterdir():
            with contextlib.suppress(FileNotFoundError):  # its owner was quicker
                if locks.is_free(job):
                    remove_tree(job)
        for lock in (self.root / "locks").iterdir():
            with contextlib.suppress(FileNotFoundError):
                locks.remove_if_free(lock)
        for name in _FOLDERS:
            for path in (self.root / name).glob(".*.new"):
                path.unlink()


def layer_key(diff_id: str, ids: Ids) -> str:
    """Sixteen characters for the content and for whom it is unpacked; the marker has it in full."""
    digest = hashlib.sha256(f"{diff_id}\n{ids.name}".encode()).digest()
    return base64.b32encode(digest[:10]).decode().lower()


def _file_name(holder: str) -> str:
    if not holder or "/" in holder or holder.startswith("."):
        raise ValueError(f"{holder!r} cannot hold an image")
    return holder


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RuntimeFailure(
            f"{path} is damaged: {error}", hint="remove the file, then pull again"
        ) from error
    return body


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _write(path: Path, body: dict[str, Any], *, durable: bool) -> None:
    with path.open("x") as file:
        json.dump(body, file)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _replace(path: Path, body: dict[str, Any], *, durable: bool = True) -> None:
    """Readers see the old content or the new one, whatever happens."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    _write(fresh, body, durable=durable)
    fresh.rename(path)
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
