# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From a source to the store: manifest, platform, configuration, layers, name. Blocking.

Nothing is believed: every byte that is kept hashes to what the manifest, or its digest, says.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from casulo.images import layers, locks, manifest
from casulo.images.ids import Ids
from casulo.images.manifest import Descriptor
from casulo.images.reference import Reference
from casulo.images.report import Report
from casulo.images.shelf import MOST_LAYERS, Name, Shelf, Stored, layer_key
from casulo.images.sources import Source
from casulo.images.unpack import Budget
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Platform


@dataclass(frozen=True)
class Wanted:
    """What to fetch, for whom to unpack it, and how much of it is too much."""

    reference: Reference
    platform: Platform
    ids: Ids
    limit_bytes: int
    parallel: int = 2


class Pull:
    """One image on its way into the store. `job` is the folder for its work in progress."""

    def __init__(self, shelf: Shelf, job: Path, source: Source, wanted: Wanted, report: Report) -> None:
        self._shelf = shelf
        self._job = job
        self._source = source
        self._wanted = wanted
        self._report = report
        self._budget = Budget(wanted.limit_bytes)

    def run(self) -> str:
        """The digest of the image, which is in the store now, whole."""
        named, raw = self._manifest()
        outer = manifest.parse(raw)
        assert isinstance(outer, manifest.Manifest)
        digest = manifest.digest_of(raw)
        configuration = self._configuration(outer, digest)
        inner = manifest.parse_configuration(configuration, outer)
        self._check(inner)
        with locks.held(self._shelf.lock, shared=True):
            self._shelf.reserve(self._job, [layer_key(d, self._wanted.ids) for d in inner.diff_ids])
        self._fetch_layers(outer, inner, digest)
        stored = Stored(digest, raw.decode(), configuration.decode(), now())
        keep(self._shelf, stored, self._names(digest, named))
        return digest

    def _manifest(self) -> tuple[str, bytes]:
        """(digest of what the reference names, the manifest for the platform)."""
        wanted = self._wanted
        raw = self._source.manifest()
        named = _verified("the manifest", raw, wanted.reference.digest)
        parsed = manifest.parse(raw)
        if isinstance(parsed, manifest.Index):
            chosen = manifest.choose(parsed, wanted.platform, wanted.reference.familiar)
            raw = self._source.manifest(chosen.digest)
            _verified("the manifest", raw, chosen.digest)
            if isinstance(manifest.parse(raw), manifest.Index):
                raise InvalidRequest("the image is a list of lists", code=Code.IMAGE_INVALID)
        return named, raw

    def _configuration(self, outer: manifest.Manifest, digest: str) -> bytes:
        if outer.config.size > manifest.LARGEST:
            raise InvalidRequest("the image's configuration is too large", code=Code.IMAGE_INVALID)
        with self._source.blob(outer.config, digest) as file:
            raw = file.read(manifest.LARGEST + 1)
            file.read(1)  # to the end, where a source tells how it went
        _verified("the configuration", raw, outer.config.digest)
        return raw

    def _check(self, inner: manifest.Configuration) -> None:
        wanted = self._wanted
        if inner.platform and not manifest.matches(inner.platform, wanted.platform):
            raise manifest.wrong_platform(
                wanted.reference.familiar, [inner.platform], platform_text(wanted.platform)
            )
        if len(inner.diff_ids) > MOST_LAYERS:
            raise Unsupported(
                f"the image has {len(inner.diff_ids)} layers, and {MOST_LAYERS} fit into one mount",
                code=Code.IMAGE_UNSUPPORTED,
                hint="build it with fewer steps, or export and import it as one layer",
            )

    def _fetch_layers(self, outer: manifest.Manifest, inner: manifest.Configuration, digest: str) -> None:
        pairs = dict(zip(inner.diff_ids, outer.layers, strict=True))
        missing = {d: blob for d, blob in pairs.items() if not self._shelf.layer_info(d, self._wanted.ids)}
        self._report.plan(len(pairs), len(pairs) - len(missing), sum(b.size for b in missing.values()))
        pool = ThreadPoolExecutor(self._wanted.parallel, thread_name_prefix="layer")
        running = [pool.submit(self._fetch_layer, *pair, digest) for pair in missing.items()]
        try:
            for future in as_completed(running):
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetch_layer(self, diff_id: str, blob: Descriptor, digest: str) -> None:
        """Whoever has the lock does it; the others find it done."""
        wanted = self._wanted
        with self._shelf.lock_layer(diff_id, wanted.ids):
            if self._shelf.layer_info(diff_id, wanted.ids) is None:
                self._unpack_layer(diff_id, blob, digest)
        self._report.layer_done()

    def _unpack_layer(self, diff_id: str, blob: Descriptor, digest: str) -> None:
        wanted = self._wanted
        copy = self._shelf.other_copy(diff_id, wanted.ids)
        if copy is not None:
            layers.derive(self._shelf, self._job, diff_id, copy, wanted.ids)
            return
        with self._source.blob(blob, digest) as file:
            made = layers.unpack(file, self._job, wanted.ids, self._budget, self._report.read)
            if made.raw_digest != blob.digest:
                raise _mismatch("a layer", blob.digest, made.raw_digest)
            if made.diff_id != diff_id:
                raise _mismatch("a layer's content", diff_id, made.diff_id)
        self._shelf.keep_layer(made.folder, made.info(wanted.ids))

    def _names(self, digest: str, named: str) -> list[Name]:
        """As it was asked for, and by digest: of the list that named it, and its own."""
        reference, platform = self._wanted.reference, platform_text(self._wanted.platform)
        asked = Name(reference.canonical, platform, digest)
        pinned = [reference.at(named).canonical, reference.at(digest).canonical] if reference.registry else []
        return [asked, *(Name(name, platform, digest, implied=True) for name in pinned)]


def keep(shelf: Shelf, stored: Stored, names: list[Name]) -> None:
    """Put an image whose layers are there into the store; the names come last."""
    with locks.held(shelf.lock, shared=True):
        shelf.store(stored)
        for name in names:
            shelf.set_name(name)


def platform_text(platform: Platform) -> str:
    """As the store writes it."""
    return f"{platform.os}/{platform.arch}"


def now() -> str:
    """For `Stored.stored_at`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _verified(what: str, raw: bytes, digest: str) -> str:
    """The digest of `raw`, which must be `digest` unless that is empty."""
    found = manifest.digest_of(raw)
    if digest and found != digest:
        raise _mismatch(what, digest, found)
    return found


def _mismatch(what: str, wanted: str, found: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} of the image is not what was promised: {wanted} is expected, {found} came",
        code=Code.IMAGE_INVALID,
        hint="try again; if it stays so, the registry's copy is damaged",
    )
