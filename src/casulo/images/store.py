# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The image store as the rest of the server sees it: names in, layers and configuration out.

What is here is used without asking its registry again, as engines do; `pull` asks. Fetching and
unpacking happen in worker processes; several callers who want the same image wait for one of them.
An image that one caller's credentials brought here is then here for everybody who may use the server.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from casulo.images import build as building
from casulo.images import daemon, locks, reference
from casulo.images import host as host_image
from casulo.images import prune as pruning
from casulo.images.config import ImageConfig
from casulo.images.ids import PLAIN, Ids
from casulo.images.jobs import Flights
from casulo.images.prune import Pruned
from casulo.images.pull import platform_text
from casulo.images.recipe import Recipe
from casulo.images.reference import DAEMON, Reference
from casulo.images.report import Progress
from casulo.images.settings import ImagesSettings, RegistrySettings
from casulo.images.shelf import Shelf, Stored, layer_key
from casulo.images.skopeo import Access
from casulo.images.users import User
from casulo.images.users import resolve as resolve_user
from casulo.images.view import read
from casulo.model.credentials import Credentials
from casulo.model.errors import Code, InvalidRequest, NotFound, Unsupported
from casulo.model.sandbox import Platform

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Image:
    """An image that is ready to be mounted: `layers` are directories, the lowest first."""

    name: str
    digest: str
    layers: tuple[Path, ...]
    config: ImageConfig
    ids: Ids
    platform: str

    def user(self, wanted: str | None = None) -> User:
        """Numbers of the image's USER, or of `wanted`, by the image's own files. Reads from disk."""
        passwd, group = (
            (read(self.layers, self.ids, path) or b"").decode(errors="replace")
            for path in ("/etc/passwd", "/etc/group")
        )
        found = resolve_user(self.config.user if wanted is None else wanted, passwd, group)
        self.ids.owner(found.uid, found.gid, b"USER")
        return found


@dataclass(frozen=True)
class Summary:
    """One line of a list of images; `size` counts layers that other images share, too."""

    names: tuple[str, ...]
    digest: str
    platform: str
    size: int
    layers: int
    created: str
    stored_at: str


@dataclass(frozen=True)
class _Need:
    reference: Reference
    platform: Platform
    ids: Ids
    holder: str = ""


class ImageStore:
    """Images below `root`, unpacked for `ids`. Several processes may have the same folder open."""

    def __init__(self, root: Path, settings: ImagesSettings, ids: Ids, owner: str = "") -> None:
        """`owner` is the server whose sandboxes will hold images."""
        self._owner = owner
        self._settings = settings
        self._ids = ids
        self._shelf = Shelf(root)
        self._flights = Flights(self._sweep)
        self._here = Platform("linux", daemon.host_architecture())

    async def open(self) -> None:
        """Make the folders, and remove what killed processes left."""
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        self._shelf.prepare()
        self._sweep()

    def _sweep(self) -> None:
        with locks.held(self._shelf.lock):
            self._shelf.sweep()

    async def close(self) -> None:
        """Stop what is still being fetched."""
        await self._flights.close()

    async def resolve(
        self,
        name: str,
        credentials: Credentials | None = None,
        platform: Platform | None = None,
        *,
        holder: str = "",
        ids: Ids | None = None,
        progress: OnProgress | None = None,
    ) -> Image:
        """The image, fetched if it is not here. With a `holder` nothing removes it before `release`.

        Cancelling ends the fetch, unless somebody else waits for it too.
        """
        need = _Need(reference.parse(name), platform or self._here, ids or self._ids, holder)
        found = await asyncio.to_thread(self._local, need)
        for _ in range(3):  # a prune may come between the fetch and the hold
            if found is not None:
                return found
            if not need.reference.is_local or not await asyncio.to_thread(self._unpacked_otherwise, need):
                self._check_source(need.reference)
            await self._bring(need, credentials, progress)
            found = await asyncio.to_thread(self._local, need)
        if found is None:
            raise _removed(need.reference)
        return found

    async def _bring(self, need: _Need, credentials: Credentials | None, progress: OnProgress | None) -> None:
        if not await self._derive(need, progress):
            await self._fetch(need, credentials, progress)

    async def _derive(self, need: _Need, progress: OnProgress | None = None) -> bool:
        """Whether the image was here for other ids; then it is for these, too."""
        digest = await asyncio.to_thread(self._unpacked_otherwise, need)
        if digest:
            job = {**self._job("derive", need), "digest": digest}
            await self._flights.run(job, self._settings.pull_timeout_seconds, progress)
        return bool(digest)

    async def local(self, name: str, platform: Platform | None = None) -> Image | None:
        """The image if it is here; no source is asked."""
        need = _Need(reference.parse(name), platform or self._here, self._ids)
        return await asyncio.to_thread(self._local, need)

    async def pull(
        self,
        name: str,
        credentials: Credentials | None = None,
        platform: Platform | None = None,
        progress: OnProgress | None = None,
    ) -> Image:
        """The image as its source has it now. For this machine's administrator: any source will do."""
        need = _Need(reference.parse(name), platform or self._here, self._ids)
        await self._fetch(need, credentials, progress)
        return await self._finished(need)

    async def import_image(
        self,
        source: Path,
        name: str,
        config: ImageConfig | None = None,
        *,
        base: str = "",
        tree_ids: Ids = PLAIN,
        progress: OnProgress | None = None,
    ) -> Image:
        """An image of one layer from a root file system: a folder, or an archive in any compression.

        With `base`, a digest, the layer comes on top of that image. `tree_ids` says how the files of
        a folder are owned.
        """
        need = _Need(reference.parse(name), self._here, self._ids)
        if need.reference.is_local or need.reference.digest:
            raise InvalidRequest(f"{name} is no name to give to an image", code=Code.INVALID_PARAMETER)
        job = {
            **self._job("import", need),
            "source": str(source.absolute()),
            "config": (config or ImageConfig()).as_json(),
            "base": base,
            "tree_ids": tree_ids.name,
        }
        await self._flights.run(job, self._settings.pull_timeout_seconds, progress)
        return await self._finished(need)

    async def build(
        self, recipe: Recipe, env: Mapping[str, str], say: Callable[[str], None] = lambda _: None
    ) -> Image:
        """The image of a recipe. For this machine's administrator; `say` is told of each step."""
        building.check(recipe)
        base = None if recipe.suite or recipe.on_host else await self._base(recipe)
        with self._shelf.job() as place:
            tree = building.Tree(place / "build", base.layers if base else ())
            if recipe.on_host or (base and base.config.on_host):
                machine = await asyncio.to_thread(host_image.prepare, place / "host", 0, ())
                tree = replace(tree, lower=(machine.root, *tree.lower), shown=machine.binds)
            await asyncio.to_thread(building.build, recipe, tree, env, say)
            say("storing the image")
            config = recipe.configure(base.config if base else ImageConfig())
            return await self.import_image(tree.result, recipe.name, config, base=base.digest if base else "")

    async def _base(self, recipe: Recipe) -> Image:
        need = _Need(reference.parse(recipe.base), self._here, PLAIN)
        found = await asyncio.to_thread(self._local, need)
        if found is None:
            await self._bring(need, None, None)
        return found or await self._finished(need)

    async def list(self) -> builtins.list[Summary]:
        """Every image, by name."""
        return await asyncio.to_thread(self._list)

    async def share(self, holder: str, other: str) -> Image | None:
        """Let `other` hold what `holder` holds, too, whatever its names stand for by now; None without."""
        return await asyncio.to_thread(self._share, holder, other)

    async def release(self, holder: str) -> None:
        """End a hold. Idempotent."""
        await asyncio.to_thread(self.release_now, holder)

    def release_now(self, holder: str) -> None:
        """`release` for a thread that may block."""
        self._shelf.release(holder)

    async def release_all_but(self, live: Collection[str]) -> None:
        """After a restart: end the holds of this owner's holders that are not in `live`."""
        await asyncio.to_thread(self._shelf.release_all_but, live, self._owner)

    async def remove(self, name: str, in_use: Iterable[str] = ()) -> Pruned:
        """Take a name away, and with the last one the image; Conflict while it is held or `in_use`.

        `name` may be a digest, or its beginning: then all its names go.
        """
        return await asyncio.to_thread(pruning.remove, self._shelf, name, frozenset(in_use))

    async def prune(self, in_use: Iterable[str] = (), *, unused: bool = False) -> Pruned:
        """Remove layers that no image has, images without a name, and with `unused` all not in use."""
        return await asyncio.to_thread(pruning.prune, self._shelf, frozenset(in_use), unused)

    def _local(self, need: _Need) -> Image | None:
        with locks.held(self._shelf.lock, shared=True):
            stored = self._stored(need)
            return self._whole(stored, need.reference.familiar, need.ids, need.holder) if stored else None

    def _share(self, holder: str, other: str) -> Image | None:
        with locks.held(self._shelf.lock, shared=True):
            digest, _ = self._shelf.held().get(holder, ("", frozenset()))
            stored = self._shelf.stored(digest) if digest else None
            return self._whole(stored, stored.digest, self._ids, other) if stored else None

    def _whole(self, stored: Stored, name: str, ids: Ids, holder: str) -> Image | None:
        """The image if all of its layers are unpacked; held from now on if there is a holder."""
        inner = stored.parsed
        if any(self._shelf.layer_info(diff_id, ids) is None for diff_id in inner.diff_ids):
            return None
        layers = [self._shelf.layer(diff_id, ids) for diff_id in inner.diff_ids]
        if holder:
            keys = [layer_key(diff_id, ids) for diff_id in inner.diff_ids]
            self._shelf.hold(holder, stored.digest, keys, self._owner)
        whole = tuple(layers) or (self._shelf.empty_layer(ids),)
        return Image(name, stored.digest, whole, inner.config, ids, inner.platform)

    def _stored(self, need: _Need) -> Stored | None:
        digest = self._shelf.digest_of(need.reference.canonical, platform_text(need.platform))
        return self._shelf.stored(digest) if digest else None

    def _unpacked_otherwise(self, need: _Need) -> str:
        """The digest of an image that is here, but unpacked for other ids; else empty."""
        stored = self._stored(need)
        if stored is None:
            return ""
        missing = [d for d in stored.parsed.diff_ids if self._shelf.layer_info(d, need.ids) is None]
        return stored.digest if all(self._shelf.other_copy(d, need.ids) for d in missing) else ""

    async def _finished(self, need: _Need) -> Image:
        found = await asyncio.to_thread(self._local, need)
        if found is None and await self._derive(need):  # a base may have been here for other ids only
            found = await asyncio.to_thread(self._local, need)
        if found is None:
            raise _removed(need.reference)
        return found

    async def _fetch(self, need: _Need, credentials: Credentials | None, progress: OnProgress | None) -> None:
        job = {
            **self._job("pull", need),
            "parallel": self._settings.parallel_layers,
            "access": vars(self._access(need.reference, credentials)),
        }
        await self._flights.run(job, self._settings.pull_timeout_seconds, progress)

    def _job(self, do: str, need: _Need) -> dict[str, object]:
        return {
            "do": do,
            "root": str(self._shelf.root.absolute()),
            "name": need.reference.canonical,
            "platform": [need.platform.os, need.platform.arch],
            "ids": need.ids.name,
            "limit": self._settings.max_unpacked_bytes,
        }

    def _access(self, wanted: Reference, credentials: Credentials | None) -> Access:
        settings = self._settings
        registry = settings.registries.get(wanted.registry, RegistrySettings())
        login = credentials or Credentials(registry.username, registry.password)
        return Access(
            username=login.username,
            password=login.password,
            auth_file=str(settings.auth_file.expanduser().absolute()) if settings.auth_file else "",
            insecure=registry.insecure,
            docker_host=settings.docker_host,
            stall_seconds=settings.stall_timeout_seconds,
        )

    def _check_source(self, wanted: Reference) -> None:
        """What of this machine a request may name: nothing, unless the settings say so."""
        if not wanted.is_local or (wanted.transport == DAEMON and self._settings.docker_daemon):
            return
        if wanted.transport != DAEMON:
            place = Path(wanted.location).resolve()
            if any(place.is_relative_to(folder.expanduser().resolve()) for folder in self._settings.sources):
                return
        setting = "docker_daemon = true" if wanted.transport == DAEMON else "sources = [its folder]"
        raise Unsupported(
            f"image {wanted.familiar}: requests may not name this source",
            code=Code.IMAGE_UNSUPPORTED,
            hint=f"run `osb image pull` on the server's machine, or set [images] {setting}",
        )

    def _list(self) -> builtins.list[Summary]:
        names: dict[str, list[str]] = {}
        for name in self._shelf.names():
            if not name.implied:
                names.setdefault(name.digest, []).append(reference.parse(name.name).familiar)
        sizes: dict[str, int] = {}
        for _, info in self._shelf.layers():
            sizes[info.diff_id] = info.bytes
        found = [_summary(stored, names.get(stored.digest, []), sizes) for stored in self._shelf.all_stored()]
        return sorted(found, key=lambda summary: (summary.names, summary.digest))


def _summary(stored: Stored, names: list[str], sizes: dict[str, int]) -> Summary:
    inner = stored.parsed
    return Summary(
        names=tuple(sorted(names)),
        digest=stored.digest,
        platform=inner.platform,
        size=sum(sizes.get(diff_id, 0) for diff_id in set(inner.diff_ids)),
        layers=len(inner.diff_ids),
        created=inner.created,
        stored_at=stored.stored_at,
    )


def _removed(name: Reference) -> NotFound:
    return NotFound(f"image {name.familiar} was removed as soon as it was here", code=Code.IMAGE_NOT_FOUND)
