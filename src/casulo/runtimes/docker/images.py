# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Images as the engine has them: found, fetched by the engine itself, and read for how they want to run."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiodocker import DockerError

from casulo.images import faults, users
from casulo.images.config import ImageConfig
from casulo.images.reference import DAEMON, DOCKER, Reference, parse
from casulo.images.settings import ImagesSettings
from casulo.images.users import User
from casulo.model.credentials import Credentials
from casulo.model.errors import CasuloError, Code, InvalidRequest, NotFound, TimedOut, Unsupported
from casulo.runtimes.docker.engine import Absent, Engine, explained

_ROOT = ("", "0", "root", "0:0", "root:root")
_ACCOUNTS_LIMIT = 8 << 20
_MOST_LINKS = 8


@dataclass(frozen=True)
class EngineImage:
    """One image of the engine, by its id, which stays what it is."""

    id: str
    config: ImageConfig
    os: str
    architecture: str

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> EngineImage:
        """From the answer to `GET /images/NAME/json`."""
        config = ImageConfig.parse(body.get("Config") or {})
        return cls(str(body["Id"]), config, str(body.get("Os", "")), str(body.get("Architecture", "")))


class Images:
    """Finds and fetches. Concurrent requests for one image share one fetch."""

    def __init__(self, engine: Engine, settings: ImagesSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._pulls: dict[tuple[str, Credentials | None], asyncio.Task[None]] = {}
        self._users: dict[str, User] = {}

    async def close(self) -> None:
        """End fetches that nobody waits for."""
        for task in list(self._pulls.values()):
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    async def provide(self, text: str, credentials: Credentials | None) -> EngineImage:
        """The image that a request names, fetched unless the engine has it."""
        reference = named(text)
        try:
            return self._fitting(await self.inspect(reference.canonical), text)
        except Absent:
            if reference.transport == DAEMON:
                raise _not_here(text) from None
        await self._pull(reference, credentials or self._configured(reference))
        try:
            return self._fitting(await self.inspect(reference.canonical), text)
        except Absent:
            raise faults.explained(reference, "the engine lost its connection") from None

    async def inspect(self, name: str) -> EngineImage:
        """The engine's image of this name; Absent when it has none."""
        with explained(f"look at the image {name}", Code.IMAGE_NOT_FOUND):
            return EngineImage.parse(
                await self._engine.docker.images.inspect(name.removeprefix(f"{DAEMON}:"))
            )

    def _fitting(self, image: EngineImage, text: str) -> EngineImage:
        have, need = f"{image.os}/{image.architecture}", f"linux/{self._engine.about.architecture}"
        if have != need:
            raise Unsupported(
                f"image {text} is for {have}, and the Docker engine runs {need}",
                code=Code.IMAGE_UNSUPPORTED,
                hint="name an image that was built for the engine's platform",
            )
        return image

    def _configured(self, reference: Reference) -> Credentials | None:
        found = self._settings.registries.get(reference.registry)
        return Credentials(found.username, found.password) if found and found.username else None

    async def _pull(self, reference: Reference, credentials: Credentials | None) -> None:
        """Whoever gives up leaves the fetch to the others."""
        key = (reference.canonical, credentials)
        if key not in self._pulls:
            task = asyncio.create_task(self._fetch(reference, credentials), name=f"pull {key[0]}")
            self._pulls[key] = task
            task.add_done_callback(lambda done: self._fetched(key, done))
        await asyncio.shield(self._pulls[key])

    def _fetched(self, key: tuple[str, Credentials | None], task: asyncio.Task[None]) -> None:
        del self._pulls[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it; without anybody nobody is to be told

    async def _fetch(self, reference: Reference, credentials: Credentials | None) -> None:
        auth = {"username": credentials.username, "password": credentials.password} if credentials else None
        try:
            async with asyncio.timeout(self._settings.pull_timeout_seconds):
                with explained(f"fetch the image {reference.familiar}", Code.IMAGE_PULL_FAILED):
                    lines = self._engine.docker.images.pull(reference.canonical, auth=auth, stream=True)
                    await self._read(aiter(lines), reference)
        except TimeoutError:
            raise _too_slow(reference, self._settings.pull_timeout_seconds) from None

    async def _read(self, lines: Any, reference: Reference) -> None:
        """Follow the engine's account of it to the end."""
        while True:
            try:
                async with asyncio.timeout(self._settings.stall_timeout_seconds):
                    await anext(lines)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise faults.silent(reference, self._settings.stall_timeout_seconds) from None
            except DockerError as error:
                raise refused(reference, error.message) from error

    async def user(self, image: EngineImage, container: str) -> User:
        """Who the image's USER is, by the accounts in a container of it."""
        if image.config.user in _ROOT:
            return User(0, 0, (), "/root", "root")
        if image.id not in self._users:
            passwd, group = [await self._text(container, f"/etc/{name}") for name in ("passwd", "group")]
            self._users[image.id] = users.resolve(image.config.user, passwd, group)
        return self._users[image.id]

    async def _text(self, container: str, path: str) -> str:
        """A small file of a container, along its links; empty when there is none."""
        for _ in range(_MOST_LINKS):
            try:
                answer = await self._engine.excerpt(
                    f"containers/{container}/archive", {"path": path}, _ACCOUNTS_LIMIT
                )
            except Absent:
                return ""
            content, target = _first_member(answer)
            if not target:
                return content
            path = posixpath.join(posixpath.dirname(path), target)
        return ""


def named(text: str) -> Reference:
    """The reference of a request's image; Unsupported for what an engine has no use for."""
    reference = parse(text)
    if reference.transport not in (DOCKER, DAEMON):
        raise Unsupported(
            f"the Docker runtime takes no {reference.transport}: images",
            code=Code.IMAGE_UNSUPPORTED,
            hint="`docker load` it, and name it by its tag",
        )
    return reference


def _first_member(answer: bytes) -> tuple[str, str]:
    """(text of the file, target of the link) that an archive begins with."""
    try:
        with tarfile.open(fileobj=io.BytesIO(answer)) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member and member.isfile() else None
            target = member.linkname if member and member.issym() else ""
            return file.read().decode(errors="replace") if file else "", target
    except tarfile.TarError as error:
        raise InvalidRequest(
            f"the image's accounts cannot be read: {error}", code=Code.IMAGE_INVALID
        ) from error


def refused(reference: Reference, words: str) -> CasuloError:
    """Why an engine did not fetch an image. What it wants to be told, it is told in its own settings."""
    found = faults.explained(reference, words)
    if "insecure = true" in found.hint:
        found.hint = "add its CA to the engine's certs.d, or the registry to its insecure-registries"
    return found


def _not_here(text: str) -> NotFound:
    return NotFound(
        f"the Docker engine has no image {text.removeprefix('docker-daemon:')}", code=Code.IMAGE_NOT_FOUND
    )


def _too_slow(reference: Reference, seconds: float) -> TimedOut:
    return TimedOut(
        f"image {reference.familiar} was not here after {seconds:g} s",
        code=Code.IMAGE_PULL_TIMEOUT,
        hint="try again, or raise [images] pull_timeout_seconds",
    )
