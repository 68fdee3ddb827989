# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The connection to a Docker Engine: what it is, what it can do, and its errors in our words."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from casulo.model.errors import CasuloError, Code, RuntimeFailure, Unavailable, Unsupported
from casulo.runtimes.docker.settings import DockerSettings

T = TypeVar("T")
OLDEST_API = (1, 41)
_NO_CONNECTION = 900
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}


@dataclass(frozen=True)
class About:
    """What an engine says about itself. `unlimited` are the resources that it cannot limit."""

    version: str
    architecture: str
    kernel: str
    storage: str
    runtimes: tuple[str, ...]
    default_runtime: str
    unlimited: tuple[str, ...]
    rootless: bool
    seccomp: bool = False

    @classmethod
    def parse(cls, info: Mapping[str, Any]) -> About:
        """From the answer to `GET /info`."""
        security = " ".join(info.get("SecurityOptions") or ())
        machine = str(info.get("Architecture", ""))
        return cls(
            version=str(info.get("ServerVersion", "")),
            architecture=_ARCHITECTURES.get(machine, machine),
            kernel=str(info.get("KernelVersion", "")),
            storage=str(info.get("Driver", "")),
            runtimes=tuple(sorted(info.get("Runtimes") or ())),
            default_runtime=str(info.get("DefaultRuntime", "")),
            unlimited=tuple(name for key, name in _LIMITS.items() if info.get(key) is False),
            rootless="name=rootless" in security,
            seccomp="name=seccomp" in security,
        )

    @property
    def gvisor(self) -> str:
        """The name under which the engine knows gVisor; empty when it does not."""
        return next((name for name in self.runtimes if "runsc" in name), "")


class Engine:
    """One engine, open between `open` and `close`; `about` is valid then."""

    about: About

    def __init__(self, settings: DockerSettings) -> None:
        self._settings = settings

    async def open(self) -> None:
        """Connect. Unsupported says why this engine cannot serve, or that there is none."""
        self.docker = Docker(
            url=self._settings.url,
            ssl_context=_tls(self._settings),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_seconds),
        )
        try:
            with explained("say what it is"):
                self.about = About.parse(await self.docker.system.info())
            self._check_version()
        except CasuloError as error:
            await self.docker.close()
            raise Unsupported(
                f"the Docker engine at {self._settings.url} cannot be used: {error.message}",
                code=Code.HOST_UNSUPPORTED,
                hint=error.hint or "start Docker, or set [docker] host or DOCKER_HOST to where it listens",
            ) from error

    def _check_version(self) -> None:
        spoken = tuple(int(part) for part in self.docker.api_version.lstrip("v").split("."))
        if spoken < OLDEST_API:
            wanted = ".".join(map(str, OLDEST_API))
            raise RuntimeFailure(
                f"it speaks version {self.docker.api_version} of its API, and {wanted} is needed",
                hint="install Docker 20.10 or newer",
            )
        if self.about.unlimited:
            raise RuntimeFailure(
                f"it cannot limit {', '.join(self.about.unlimited)}",
                hint="give the engine the cgroup controllers cpu, memory and pids",
            )

    async def close(self) -> None:
        """Let go of the connections."""
        await self.docker.close()

    def container(self, name: str) -> DockerContainer:
        """A container by name or id, whether or not it exists."""
        return self.docker.containers.container(name)

    async def show(self, name: str) -> dict[str, Any] | None:
        """All about a container; None when there is none of that name."""
        try:
            with explained("look at a container"):
                return await self.container(name).show()
        except Absent:
            return None

    async def status(self, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        """What the engine says about a file of a container, without the file."""
        with explained("look at a file"):
            async with self.docker.session.head(self._address(path), params=dict(params)) as answer:
                if answer.status >= 400:
                    raise DockerError(answer.status, f"no {params['path']}")
                header = answer.headers["X-Docker-Container-Path-Stat"]
        return dict(json.loads(base64.b64decode(header)))

    def _address(self, path: str) -> str:
        return f"{self.docker.docker_host}/{self.docker.api_version}/{path}"

    async def excerpt(self, path: str, params: Mapping[str, str], limit: int) -> bytes:
        """At most `limit` bytes of an answer that somebody untrusted may have made long."""
        with explained("hand out a file"):
            async with self.docker.session.get(self._address(path), params=dict(params)) as answer:
                if answer.status >= 400:
                    raise DockerError(answer.status, (await answer.text())[:500])
                content = bytearray()
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) >= limit:
                        answer.close()
                        break
        return bytes(content[:limit])


class Absent(RuntimeFailure):
    """The engine knows no such object."""


class Busy(RuntimeFailure):
    """The engine's object is in a state that forbids the call."""


@contextmanager
def explained(task: str, code: str = Code.UNKNOWN) -> Iterator[None]:
    """What the engine raises inside becomes ours: Absent, Busy, Unavailable or RuntimeFailure."""
    try:
        yield
    except DockerError as error:
        raise _translated(task, error, code) from error
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise _unreachable(f"the Docker engine did not {task}: {_said(error)}") from error


def _translated(task: str, error: DockerError, code: str) -> CasuloError:
    if error.status == _NO_CONNECTION:
        why = _said(error.__cause__ or error.__context__ or error)
        return _unreachable(f"the Docker engine does not answer: {why}")
    kind = {404: Absent, 409: Busy, 304: Busy}.get(error.status, RuntimeFailure)
    return kind(f"Docker could not {task}: {error.message}", code=code)


def _unreachable(message: str) -> Unavailable:
    return Unavailable(
        message,
        code=Code.RUNTIME_UNAVAILABLE,
        hint="start Docker, or set [docker] host or DOCKER_HOST to where it listens",
        retry_after=5,
    )


def _said(error: BaseException) -> str:
    """Without the engine's address, which is nothing for those who use the server."""
    system = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    words = system.strerror if isinstance(system, OSError) else str(system)
    return words or type(error).__name__


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` even when cancelled: the engine goes on with a call whose caller has left."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _tls(settings: DockerSettings) -> ssl.SSLContext | None:
    if settings.tls_dir is None:
        return None
    folder = settings.tls_dir.expanduser()
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    except OSError as error:
        raise Unsupported(
            f"[docker] tls_dir: the certificates in {folder} cannot be read: {error}",
            code=Code.HOST_UNSUPPORTED,
            hint="it needs ca.pem, cert.pem and key.pem, as `docker --tlsverify` wants them",
        ) from error
    return context
