# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox's root file system is made of, and how it wants to be run: one answer for every image.

The machine's own programs are one generated layer and some binds; an OCI image is a pile of layers.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from casulo.images import daemon, reference, view
from casulo.images import host as host_image
from casulo.images.config import combine
from casulo.images.ids import Ids
from casulo.images.settings import ImagesSettings
from casulo.images.store import Image, ImageStore
from casulo.images.users import User
from casulo.model.credentials import Credentials
from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import Code, InvalidRequest, RuntimeFailure, Unsupported
from casulo.model.sandbox import Spec
from casulo.network.filter import host_resolvers
from casulo.runtimes.local.host import Host

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


class Roots:
    """The roots of sandboxes that are about to start, and the store that their images come from."""

    def __init__(self, settings: ImagesSettings, host: Host) -> None:
        self.ids = Ids(None) if host.rootless else Ids(host.id_base)
        self._store = ImageStore(settings.place(host.data), settings, self.ids, owner=host.instance)
        self._host_folder = host.data / "images" / "host"
        self._provided: dict[str, Root] = {}

    async def open(self, live: Collection[str]) -> None:
        """Prepare the store and the machine's own image; images of sandboxes not in `live` are let go."""
        await self._store.open()
        await self._store.release_all_but(live)
        self._resolvers = tuple(map(str, host_resolvers()))
        self._host_image = await asyncio.to_thread(
            host_image.prepare, self._host_folder, self.ids.base, self._resolvers
        )

    async def close(self) -> None:
        """Stop what is still being fetched."""
        await self._store.close()

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None) -> None:
        """Have the root of a sandbox ready for `take`, and its image held until `release`."""
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

    def write_names(self, root: Root, upper: Path, hostname: str, address: str) -> None:
        """What the sandbox is called, in the layer that it writes to. Nothing there is its own yet."""
        etc = upper / "etc"
        etc.mkdir()
        etc.chmod(root.etc.mode)
        os.chown(etc, *self.ids.owner(root.etc.uid, root.etc.gid, b"/etc"))
        own = {
            "hostname": f"{hostname}\n",
            "hosts": f"127.0.0.1 localhost\n::1 localhost\n{address} {hostname}\n",
        }
        for name, text in {**root.names, **own}.items():
            (etc / name).write_text(text)
            os.chown(etc / name, *self.ids.owner(0, 0, b"/etc"))

    async def release(self, sandbox_id: str) -> None:
        """Let the image go. Idempotent."""
        self._provided.pop(sandbox_id, None)
        await self._store.release(sandbox_id)

    def _host_root(self, spec: Spec) -> Root:
        image = self._host_image
        return Root(
            layers=(image.root,),
            arguments=spec.entrypoint,
            environment=image.environment,
            workdir=image.workdir,
            binds=image.binds,
        )

    def _image_root(self, image: Image, spec: Spec) -> Root:
        process = combine(image.config, entrypoint=spec.entrypoint)
        resolvers = "".join(f"nameserver {address}\n" for address in self._resolvers)
        return Root(
            layers=image.layers,
            arguments=process.arguments,
            environment=process.env,
            workdir=process.cwd,
            user=image.user(),
            etc=_etc(image),
            own_run=True,
            names={"resolv.conf": resolvers},
            directories=image.config.volumes,
        )


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


def _etc(image: Image) -> Etc:
    status = view.status(image.layers, image.ids, "/etc")
    if status is None:
        return Etc()
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequest(
            f"the image {image.name} cannot be started: its /etc is no directory",
            code=Code.IMAGE_INVALID,
            hint="build the image with a plain directory /etc",
        )
    return Etc(stat.S_IMODE(status.st_mode), *image.ids.original(status.st_uid, status.st_gid))
