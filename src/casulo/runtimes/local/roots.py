# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox's root file system is made of, and how it wants to be run: one answer for every image.

The machine's own programs are one generated layer and some binds; an OCI image is a pile of layers.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from casulo import linux
from casulo.images import daemon, reference, view
from casulo.images import host as host_image
from casulo.images.config import ImageConfig, combine
from casulo.images.ids import Ids
from casulo.images.settings import ImagesSettings
from casulo.images.store import Image, ImageStore
from casulo.images.unpack import UNSAID
from casulo.images.users import User
from casulo.model.credentials import Credentials
from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import Code, Conflict, InvalidRequest, RuntimeFailure, Unsupported
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Spec
from casulo.model.snapshot import snapshot_not_found
from casulo.network.filter import host_resolvers
from casulo.runtimes.local.bundle import DAEMON_PATH
from casulo.runtimes.local.snapshotshelf import SnapshotShelf

_ROOT = User(0, 0, home="/root")


@dataclass(frozen=True)
class Etc:
    """Mode and owner, by the image's own numbers, of the directory that gets the sandbox's names."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Root:
    """Directories to be laid over each other, the lowest first, and what the image says of itself.

    `arguments` start the sandbox. `own_run` leaves the image its /run; otherwise that is in memory.
    `names` are further files of /etc, by name; `directories` are made inside when they are missing.
    `memory` holds the processes that a snapshot came with.
    `written` is the topmost layer that says what / itself is like.
    """

    layers: tuple[Path, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: str
    user: User = _ROOT
    etc: Etc = Etc()
    binds: tuple[str, ...] = ()
    own_run: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    memory: Path | None = None
    written: Path | None = None


class Roots:
    """The roots of sandboxes that are about to start, and the store that their images come from."""

    def __init__(
        self, settings: ImagesSettings, data: Path, ids: Ids, owner: str, shelf: SnapshotShelf
    ) -> None:
        """`owner` tells the holds of this runtime's sandboxes from those of others."""
        self._shelf = shelf
        self.ids = ids
        self._store = ImageStore(settings.place(data), settings, ids, owner=owner)
        self._host_folder = data / "images" / "host"
        self._provided: dict[str, Root] = {}

    async def open(self, live: Collection[str]) -> None:
        """Prepare the store and the machine's own image; images of sandboxes not in `live` are let go."""
        await self._store.open()
        await asyncio.to_thread(self._shelf.prepare, live)
        await self._store.release_all_but({*live, *map(holder_of, self._shelf.snapshots())})
        self._resolvers = tuple(map(str, host_resolvers()))
        self._host_image = await asyncio.to_thread(
            host_image.prepare, self._host_folder, self.ids.base, self._resolvers
        )

    async def close(self) -> None:
        """Stop what is still being fetched."""
        await self._store.close()

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None) -> None:
        """Have the root of a sandbox ready for `take`, and its image held until `release`."""
        if spec.snapshot_id is not None:
            self._provided[sandbox_id] = await self._restored(sandbox_id, spec, spec.snapshot_id)
            return
        if spec.image == HOST_IMAGE:
            self._provided[sandbox_id] = self._host_root(spec)
            return
        image = await self._store.resolve(spec.image, credentials, spec.platform, holder=sandbox_id)
        self._provided[sandbox_id] = await asyncio.to_thread(self._image_root, image, spec)

    def take(self, sandbox_id: str) -> Root:
        """The root that was provided."""
        root = self._provided.pop(sandbox_id, None)
        if root is None:
            raise RuntimeFailure(f"no image was provided for {sandbox_id}", code=Code.SANDBOX_START_FAILED)
        return root

    async def _restored(self, sandbox_id: str, spec: Spec, snapshot_id: str) -> Root:
        """The snapshot's layers on top of the image that they were written over."""
        kept = await asyncio.to_thread(self._shelf.hold, snapshot_id, sandbox_id)
        if kept is None:
            raise snapshot_not_found(snapshot_id)
        if kept.ids != self.ids.name:
            raise Conflict(
                f"snapshot {snapshot_id} has files of users that sandboxes of this server do not have",
                code=Code.SNAPSHOT_INVALID_RESTORE_CONFIG,
                hint="run the server as the user, and with the [local] userns, that it was taken with",
            )
        over = self._shelf.places(kept)
        memory = self._shelf.memory(snapshot_id)
        found = memory if memory.exists() else None
        if kept.image == HOST_IMAGE:
            return replace(await asyncio.to_thread(self._host_root, spec, over), memory=found)
        image = await self._store.share(holder_of(snapshot_id), sandbox_id)
        if image is None:
            raise snapshot_not_found(snapshot_id)
        whole = replace(image, layers=(*image.layers, *over))
        root = await asyncio.to_thread(self._image_root, whole, spec)
        return replace(root, written=over[-1], memory=found)

    async def share(self, holder: str, other: str) -> str:
        """Let `other` hold the image that `holder` holds, too; its digest."""
        image = await self._store.share(holder, other)
        if image is None:
            raise RuntimeFailure(f"the image of {holder} is not held", code=Code.SNAPSHOT_CREATE_FAILED)
        return image.digest

    async def let_go(self, holder: str) -> None:
        """End a hold that `share` began. Idempotent."""
        await self._store.release(holder)

    def write_names(
        self, root: Root, upper: Path, hostname: str, address: str, resolver: str | None = None
    ) -> None:
        """What the sandbox is called, in the layer that it writes to. Nothing there is its own yet."""
        if root.written:
            status = root.written.stat()
            os.chown(upper, status.st_uid, status.st_gid)
            upper.chmod(stat.S_IMODE(status.st_mode))
        etc = upper / "etc"
        etc.mkdir()
        etc.chmod(root.etc.mode)
        os.chown(etc, *self.ids.owner(root.etc.uid, root.etc.gid, b"/etc"))
        own = {
            "hostname": f"{hostname}\n",
            "hosts": f"127.0.0.1 localhost\n::1 localhost\n{address} {hostname}\n",
        }
        if resolver is not None:
            # It is one cable away: what it does not answer at once was lost, perhaps with its process.
            own["resolv.conf"] = f"nameserver {resolver}\noptions timeout:2 attempts:3\n"
        for name, text in {**root.names, **own}.items():
            linux.write_file(etc / name, text, linux.NEW_FILE)
            os.chown(etc / name, *self.ids.owner(0, 0, b"/etc"))

    def own_directory(self, root: Root, upper: Path, name: str, mode: int) -> bool:
        """Whether the sandbox has a directory `name` in its root, made if there is nothing.

        A link is none, wherever it leads: resolved on the host it would lead to a place of the host.
        """
        found = view.status(root.layers, self.ids, name)
        if found is not None:
            return stat.S_ISDIR(found.st_mode)
        (upper / name).mkdir()
        (upper / name).chmod(mode)
        os.chown(upper / name, *self.ids.owner(0, 0, name.encode()))
        return True

    def release(self, sandbox_id: str) -> None:
        """Let image and snapshot go. Idempotent; blocks."""
        self._provided.pop(sandbox_id, None)
        self._shelf.release(sandbox_id)
        self._store.release_now(sandbox_id)

    def _host_root(self, spec: Spec, over: tuple[Path, ...] = ()) -> Root:
        image = self._host_image
        layers = (image.root, *over)
        return Root(
            layers=layers,
            written=over[-1] if over else None,
            etc=_etc(HOST_IMAGE, layers, self.ids) if over else Etc(),
            names={"resolv.conf": self._name_servers} if over else {},  # not those of the source
            arguments=spec.entrypoint,
            environment=image.environment,
            workdir=image.workdir,
            binds=image.binds,
        )

    def _image_root(self, image: Image, spec: Spec) -> Root:
        if image.config.on_host:
            return self._on_host(image, spec)
        process = combine(image.config, entrypoint=spec.entrypoint)
        _check_places(image)
        return Root(
            layers=image.layers,
            written=_topmost(image.layers),
            arguments=process.arguments,
            environment=process.env,
            workdir=process.cwd,
            user=image.user(),
            etc=_etc(image.name, image.layers, image.ids),
            own_run=True,
            names={"resolv.conf": self._name_servers},
            directories=image.config.volumes,
        )

    def _on_host(self, image: Image, spec: Spec) -> Root:
        """Layers of an image over the machine's own, which its programs are then mounted on."""
        machine = self._host_image
        whole = replace(image, layers=(machine.root, *image.layers))
        for path in machine.binds:
            if view.kind(whole.layers, self.ids, path) != "directory":
                raise InvalidRequest(
                    f"{image.name} cannot be started: its {path} is no directory", code=Code.IMAGE_INVALID
                )
        plain = replace(whole, config=replace(image.config, on_host=False))
        root = self._image_root(
            plain, replace(spec, entrypoint=spec.entrypoint or _host_program(image.config))
        )
        return replace(
            root,
            binds=machine.binds,
            own_run=False,
            environment={**machine.environment, **root.environment},
            workdir=machine.workdir if image.config.workdir == "/" else root.workdir,
        )

    @property
    def _name_servers(self) -> str:
        return "".join(f"nameserver {address}\n" for address in self._resolvers)


def check(spec: Spec) -> None:
    """Refuse what no image of this machine could be: a name that is none, another architecture."""
    if spec.image != HOST_IMAGE:
        reference.parse(spec.image)
    here = daemon.host_architecture()
    if spec.platform and (spec.platform.os, spec.platform.arch) != ("linux", here):
        raise Unsupported(
            f"{spec.image} is wanted for {spec.platform.os}/{spec.platform.arch}, and this machine "
            f"runs linux/{here} only",
            code=Code.IMAGE_UNSUPPORTED,
            hint="leave the platform out or ask for this machine's",
        )


def _topmost(layers: tuple[Path, ...]) -> Path | None:
    """The layer that says what the image's / is like: archives need not, and most do not."""
    return next((layer for layer in reversed(layers) if layer.stat().st_mtime_ns != UNSAID), None)


def _check_places(image: Image) -> None:
    """Where the kernel's own file systems and the daemon are mounted must be a directory or nothing."""
    for name in ("proc", "dev", "sys"):
        found = view.status(image.layers, image.ids, name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise InvalidRequest(
                f"{image.name} cannot be started: its /{name} is no directory",
                code=Code.IMAGE_INVALID,
                hint=f"build it with a plain directory /{name}, or with none",
            )
    blocked = view.blocked(image.layers, image.ids, posixpath.dirname(DAEMON_PATH))
    if blocked:
        raise InvalidRequest(
            f"{image.name} cannot be started: its {blocked} is no directory",
            code=Code.IMAGE_INVALID,
            hint=f"build it with a directory {blocked}, or with none",
        )


def _host_program(config: ImageConfig) -> tuple[str, ...]:
    """As with the image `host`, a sandbox waits when nobody says what to run."""
    return () if config.entrypoint or config.cmd else DEFAULT_ENTRYPOINT


def _etc(name: str, layers: tuple[Path, ...], ids: Ids) -> Etc:
    status = view.status(layers, ids, "/etc")
    if status is None:
        return Etc()
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequest(
            f"{name} cannot be started: its /etc is no directory",
            code=Code.IMAGE_INVALID,
            hint="begin from something with a plain directory /etc",
        )
    return Etc(stat.S_IMODE(status.st_mode), *ids.original(status.st_uid, status.st_gid))


def holder_of(snapshot_id: str) -> str:
    """Under which name a snapshot holds its image."""
    return f"snapshot-{snapshot_id}"
