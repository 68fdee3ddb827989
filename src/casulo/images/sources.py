# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where an image can come from, and the one kind that needs no help: an OCI layout on this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from casulo.images import manifest
from casulo.images.manifest import Descriptor
from casulo.images.reference import Reference
from casulo.model.errors import Code, InvalidRequest, NotFound

_TAG = "org.opencontainers.image.ref.name"


class Source(Protocol):
    """Hands out bytes. Whoever takes them compares digests: a source is not trusted."""

    def manifest(self, digest: str = "") -> bytes:
        """What the reference names, a list or one manifest; with a digest, one of that list."""
        ...

    def blob(self, descriptor: Descriptor, pinned: str) -> AbstractContextManager[BinaryIO]:
        """A blob of the manifest with the digest `pinned`; an error while reading may come at the end."""
        ...

    def close(self) -> None:
        """Let go of processes and files."""
        ...


class Layout:
    """An OCI image layout: `index.json` and `blobs/sha256`."""

    def __init__(self, reference: Reference) -> None:
        self._name = reference.canonical
        self._folder = Path(reference.location)
        self._tag = reference.tag

    def manifest(self, digest: str = "") -> bytes:
        """The one that the tag names; without a tag the only one, or all of them as a list."""
        if digest:
            return self._small(digest)
        raw = self._read(self._folder / "index.json")
        if not self._tag:
            index = manifest.parse(raw)
            single = isinstance(index, manifest.Index) and len(index.manifests) == 1
            return self._small(index.manifests[0].digest) if single else raw  # type: ignore[union-attr]
        for item in _items(raw):
            if (item.get("annotations") or {}).get(_TAG) == self._tag:
                return self._small(str(item.get("digest")))
        raise self._missing(f"it has no image tagged {self._tag!r}")

    @contextmanager
    def blob(self, descriptor: Descriptor, pinned: str) -> Iterator[BinaryIO]:
        """Opened where it lies."""
        try:
            file = self._path(descriptor.digest).open("rb")
        except FileNotFoundError:
            raise self._missing(f"its blob {descriptor.digest} is missing") from None
        with contextlib.closing(file):
            yield file

    def close(self) -> None:
        """Nothing is kept open."""

    def _small(self, digest: str) -> bytes:
        return self._read(self._path(digest))

    def _path(self, digest: str) -> Path:
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
            raise InvalidRequest(f"{self._name}: {digest!r} is no SHA-256 digest", code=Code.IMAGE_INVALID)
        return self._folder / "blobs" / "sha256" / value

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(manifest.LARGEST)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(f"{path} does not exist") from None

    def _missing(self, why: str) -> NotFound:
        return NotFound(f"image {self._name}: {why}", code=Code.IMAGE_NOT_FOUND)


def _items(raw: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(raw)["manifests"]
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest("the layout's index.json is damaged", code=Code.IMAGE_INVALID) from None
    return [item for item in found if isinstance(item, dict)]
