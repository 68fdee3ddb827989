# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One sandbox: made or found, used, renewed, paused, killed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from casulo.client.channel import Channel
from casulo.client.code import AsyncCode
from casulo.client.commands import AsyncCommands
from casulo.client.connection import Connection
from casulo.client.egress import AsyncEgress
from casulo.client.files import AsyncFiles
from casulo.client.forks import forked
from casulo.client.isolated import AsyncIsolated
from casulo.client.lifecycle import AsyncClient, Duration, HasClient, seconds
from casulo.client.records import Endpoint, Metrics, Process, SandboxInfo, SandboxPage, parse
from casulo.client.sessions import AsyncSessions
from casulo.client.snapshots import DEFAULT_TIMEOUT as SNAPSHOT_TIMEOUT
from casulo.client.snapshots import Snapshot
from casulo.client.stream import Frames
from casulo.client.templates import TEMPLATE_ID
from casulo.client.terminals import AsyncTerminals
from casulo.client.vault import AsyncVault
from casulo.client.volumes import Volume
from casulo.model.errors import (
    CasuloError,
    Code,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    TimedOut,
    Unauthenticated,
)
from casulo.model.sandbox import EXECD_PORT

DEFAULT_IMAGE = "host"
DEFAULT_TIMEOUT = 600.0
DEFAULT_READY_TIMEOUT = 30.0
HEALTH_TIMEOUT = 5.0
_GRACE = 5.0
"""Seconds for which the server's own verdict on a slow start is waited for: it says more than a timeout."""

_DECIDED_BY_TEMPLATE = ("resourceLimits",)
"""What a request for a sandbox of a template may not even repeat."""

_IDLE_PAUSE = "casulo.idle_pause_seconds"
_FIRST_POLL = 0.01
_SLOWEST_POLL = 0.25


class AsyncSandbox:
    """A handle on one sandbox. Make it with `create` or `connect`, not directly.

    As a context manager it kills, on leaving, a sandbox that it created; one that it only connected to stays.
    """

    def __init__(
        self,
        info: SandboxInfo,
        client: AsyncClient,
        *,
        endpoint: Endpoint | None = None,
        owns_client: bool = False,
        created: bool = False,
    ) -> None:
        self.info = info
        self._client = client
        self._owns_client = owns_client
        self._created = created
        self._channel = Channel(
            client.transport,
            lambda: client.endpoint(info.id, EXECD_PORT),
            client.connection.headers,
            endpoint,
            lambda: _falls_asleep(self.info),
        )
        self.egress = AsyncEgress(client, info.id)
        self.vault = AsyncVault(client, info.id)
        self.commands = AsyncCommands(self._channel)
        self.code = AsyncCode(self._channel)
        self.files = AsyncFiles(self._channel)
        self.sessions = AsyncSessions(self._channel)
        self.isolated = AsyncIsolated(self._channel)
        self.terminals = AsyncTerminals(self._channel)

    # long-function: half of it is its parameters
    @classmethod
    async def create(
        cls,
        image: str | None = DEFAULT_IMAGE,
        *,
        snapshot: Snapshot | str | None = None,
        template: str | None = None,
        entrypoint: Sequence[str] | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
        isolation: str | None = None,
        volumes: Sequence[Volume] = (),
        network_policy: Mapping[str, Any] | None = None,
        credential_proxy: bool = False,
        runtime: str | None = None,
        extensions: Mapping[str, str] | None = None,
        request: Mapping[str, Any] | None = None,
        ready_timeout: Duration = DEFAULT_READY_TIMEOUT,
        idempotency_key: str | None = None,
        client: HasClient | None = None,
        connection: Connection | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox and return when it is ready for its first command.

        It begins with the files of `image`, or as a `snapshot` or the `template` of this name or id was kept.
        `timeout` None keeps it until it is killed. `resources` are quantities such as {"memory": "1Gi"}.
        A `network_policy` holds from the first packet, and with `credential_proxy` there can be a vault of
        credentials for what it lets through. `request` adds members in wire form. What was made
        is removed when it does not become ready.
        """
        body = {
            "entrypoint": list(entrypoint) if entrypoint else None,
            "timeout": int(seconds("timeout", timeout)) if timeout is not None else None,
            "env": dict(env or {}),
            "metadata": dict(metadata or {}),
            "resourceLimits": dict(resources or {}),
            "volumes": [volume.wire(number) for number, volume in enumerate(volumes)] or None,
            "networkPolicy": None if network_policy is None else dict(network_policy),
            "credentialProxy": {"enabled": True} if credential_proxy else None,
            "extensions": _extensions(extensions, isolation, runtime),
        }
        limit = seconds("ready_timeout", ready_timeout)
        used = client.async_client() if client else AsyncClient(connection)
        try:
            body |= await _source(used, image, snapshot, template)
            info, endpoint = await _made(used, body | dict(request or {}), idempotency_key, limit)
            if image and info.image is None:  # the answer does not repeat it
                info = replace(info, image=image)
            sandbox = cls(info, used, endpoint=endpoint, owns_client=client is None, created=True)
            await sandbox._settle(limit)
        except BaseException:
            if client is None:
                await used.close()
            raise
        return sandbox

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        client: HasClient | None = None,
        connection: Connection | None = None,
    ) -> AsyncSandbox:
        """A handle on a sandbox that exists; NotFound when it does not."""
        used = client.async_client() if client else AsyncClient(connection)
        try:
            info = await used.get(sandbox_id)
        except BaseException:
            if client is None:
                await used.close()
            raise
        return cls(info, used, owns_client=client is None)

    @classmethod
    async def list(
        cls,
        *,
        states: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        page: int = 1,
        page_size: int = 20,
        client: HasClient | None = None,
        connection: Connection | None = None,
    ) -> SandboxPage:
        """One page of the sandboxes in any of `states` that carry all of `metadata`, newest first."""
        async with _borrowed(client, connection) as used:
            return await used.list(states=states, metadata=metadata, page=page, page_size=page_size)

    @classmethod
    async def get(
        cls, sandbox_id: str, *, client: HasClient | None = None, connection: Connection | None = None
    ) -> SandboxInfo:
        """The description of any sandbox."""
        async with _borrowed(client, connection) as used:
            return await used.get(sandbox_id)

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await (asyncio.shield(self.kill()) if self._created else self.close())

    async def close(self) -> None:
        """Close the connections that belong to this handle; the sandbox stays."""
        if self._owns_client:
            await self._client.close()

    async def refresh(self) -> SandboxInfo:
        """Ask the server how it is now; also kept as `info`."""
        self.info = await self._client.get(self.id)
        return self.info

    async def kill(self) -> None:
        """End and remove it, and close this handle's connections. That it is gone already is no error."""
        try:
            with contextlib.suppress(NotFound):
                await self._client.kill(self.id)
        finally:
            await self.close()

    async def renew(self, timeout: Duration) -> datetime:
        """Let it live for `timeout` seconds from now; returns its new end."""
        return await self._client.renew(self.id, timeout)

    async def pause(self) -> None:
        """Freeze its processes; they keep everything but get no time."""
        await self._client.pause(self.id)
        await self._until("Paused", DEFAULT_READY_TIMEOUT)

    async def resume(self, *, ready_timeout: Duration = DEFAULT_READY_TIMEOUT) -> None:
        """Let its processes go on; returns when it answers again."""
        self._channel.forget()
        await self._client.resume(self.id)
        await self._until("Running", seconds("ready_timeout", ready_timeout))

    async def snapshot(
        self, name: str | None = None, *, wait: bool = True, timeout: Duration = SNAPSHOT_TIMEOUT
    ) -> Snapshot:
        """Keep its files; it stands still for a moment. With `wait` the snapshot is Ready on return."""
        limit = seconds("timeout", timeout)
        return await self._client.snapshots.create(self.id, name, wait=wait, timeout=limit)

    async def fork(
        self,
        count: int = 1,
        *,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> tuple[AsyncSandbox, ...]:
        """`count` new sandboxes that begin where this one stands: with its files, and on microVMs with its
        memory. Each says in its metadata whose child it is. All of them run, or an error leaves none."""
        limit = int(seconds("timeout", timeout)) if timeout is not None else None
        return await forked(self, self._client, {"count": count, "timeout": limit, "env": dict(env or {})})

    async def patch_metadata(self, changes: Mapping[str, str | None]) -> SandboxInfo:
        """Set the given keys, remove those whose value is None, leave the others."""
        self.info = await self._client.patch_metadata(self.id, changes)
        return self.info

    async def endpoint(self, port: int, *, server_proxy: bool | None = None) -> Endpoint:
        """Where a port that is listened on inside is reached from here."""
        return await self._client.endpoint(self.id, port, server_proxy=server_proxy)

    async def health(self) -> bool:
        """Whether the daemon inside answers; False also when the sandbox is paused, ended or gone."""
        try:
            await self._channel.request("GET", "/ping", repeatable=False, timeout=HEALTH_TIMEOUT)
        except Unauthenticated:
            raise
        except CasuloError:
            return False
        return True

    async def daemon_version(self) -> str:
        """The version of the daemon inside, which is the one the sandbox was made with."""
        answer = await self._channel.request("GET", "/version")
        return parse(lambda data: str(data["version"]), answer.json())

    async def metrics(self) -> Metrics:
        """What it uses now, measured against its own limits."""
        return parse(Metrics.read, (await self._channel.request("GET", "/metrics")).json())

    async def watch_metrics(self) -> AsyncGenerator[Metrics, None]:
        """The same once a second, until the caller leaves."""
        frames = Frames()
        async with self._channel.stream("GET", "/metrics/watch") as incoming:
            async for chunk in incoming.chunks:
                for event in frames.feed(chunk):
                    if "error" not in event:  # one sample that failed; the next second brings another
                        yield parse(Metrics.read, event)

    async def processes(self) -> tuple[Process, ...]:
        """What runs in it now."""
        answer = await self._channel.request("GET", "/metrics/processes")
        found = parse(lambda data: list(data["processes"]), answer.json())
        return tuple(parse(Process.read, item) for item in found)

    async def _settle(self, limit: float) -> None:
        """Wait until it is ready; remove it when it does not get there."""
        try:
            if self.info.state != "Running":
                await self._until("Running", limit)
            await self._channel.endpoint()
        except BaseException:
            with contextlib.suppress(CasuloError):  # the reason for removing it is the error to tell
                await asyncio.shield(self.kill())
            raise

    async def _until(self, state: str, limit: float) -> None:
        deadline, pause = time.monotonic() + limit, _FIRST_POLL
        while (await self.refresh()).state != state:
            if self.info.state in ("Failed", "Terminated"):
                raise RuntimeFailure(
                    f"sandbox {self.id} is {self.info.state}: {self.info.message or self.info.reason}",
                    code=Code.SANDBOX_START_FAILED,
                )
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"sandbox {self.id} is {self.info.state}, not {state}, after {limit:g} s",
                    code=Code.SANDBOX_START_TIMEOUT,
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)


def _falls_asleep(info: SandboxInfo) -> float | None:
    """After how many seconds without use the server pauses it, if it does."""
    text = info.extensions.get(_IDLE_PAUSE, "")
    return float(text) if text.isdigit() else None


async def _source(
    client: AsyncClient, image: str | None, snapshot: Snapshot | str | None, template: str | None
) -> dict[str, Any]:
    """What the files are taken from: an image that is not the default one besides a snapshot is a mistake."""
    if template is not None:
        if snapshot is not None:
            raise InvalidRequest("give a template or a snapshot, not both", code=Code.INVALID_PARAMETER)
        if template.startswith(TEMPLATE_ID):
            return {"templateId": template, **dict.fromkeys(_DECIDED_BY_TEMPLATE)}
        snapshot = (await client.templates.get(template)).id
    if snapshot is not None and image == DEFAULT_IMAGE:
        image = None
    return {
        "image": {"uri": image} if image else None,
        "snapshotId": snapshot.id if isinstance(snapshot, Snapshot) else snapshot,
    }


async def _made(
    client: AsyncClient, body: Mapping[str, Any], key: str | None, limit: float
) -> tuple[SandboxInfo, Endpoint | None]:
    """Create; when the caller leaves meanwhile, wait for the answer and remove what it made."""
    wire = {name: value for name, value in body.items() if value is not None}
    timeout = max(limit + _GRACE, client.connection.request_timeout)
    making = asyncio.ensure_future(client.create(wire, idempotency_key=key, timeout=timeout))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(CasuloError):  # nothing was made, or the server reaps it in time
            info, _ = await making
            await client.kill(info.id)
        raise


@contextlib.asynccontextmanager
async def _borrowed(client: HasClient | None, connection: Connection | None) -> AsyncIterator[AsyncClient]:
    if client is not None:
        yield client.async_client()
        return
    async with AsyncClient(connection) as own:
        yield own


def _extensions(
    extensions: Mapping[str, str] | None, isolation: str | None, runtime: str | None
) -> dict[str, str]:
    chosen = {"casulo.isolation": isolation, "casulo.runtime": runtime}
    return {**(extensions or {}), **{key: value for key, value in chosen.items() if value}}
