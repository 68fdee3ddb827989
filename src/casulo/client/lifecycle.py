# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server's lifecycle API, one method per call; sandboxes are named by their id."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from casulo.client.connection import Connection
from casulo.client.pools import AsyncPools
from casulo.client.records import Endpoint, KeyInfo, SandboxInfo, SandboxPage, moment, parse
from casulo.client.snapshots import AsyncSnapshots
from casulo.client.templates import AsyncTemplates
from casulo.client.transport import PAUSES, Answer, Transport, encode
from casulo.model.errors import Code, InvalidRequest

Duration = float | timedelta
API_KEY_HEADER = "OPEN-SANDBOX-API-KEY"


class HasClient(Protocol):
    """Whatever brings a client along: an AsyncClient itself, or the sync Client."""

    def async_client(self) -> AsyncClient:
        """The client that does the work."""


class AsyncClient:
    """A connection to one server, with a pool that all sandboxes made through it share."""

    def __init__(
        self, connection: Connection | None = None, *, retry_pauses: tuple[float, ...] = PAUSES
    ) -> None:
        self.connection = connection or Connection.resolve()
        self.transport = Transport(self.connection.request_timeout, retry_pauses)
        self.snapshots = AsyncSnapshots(self._call)
        self.templates = AsyncTemplates(self, self._call)
        self.pools = AsyncPools(self._call)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def async_client(self) -> AsyncClient:
        """The client that does the work."""
        return self

    async def close(self) -> None:
        """Close the connections; sandboxes stay."""
        await self.transport.close()

    async def health(self) -> bool:
        """Whether the server answers and calls itself healthy; errors say why not."""
        answer = await self._plain("/health")
        return bool(answer.json().get("status") == "healthy")

    async def version(self) -> str:
        """The version of the server."""
        return parse(lambda data: str(data["version"]), (await self._plain("/version")).json())

    async def create(
        self, request: Mapping[str, Any], *, idempotency_key: str | None = None, timeout: float | None = None
    ) -> tuple[SandboxInfo, Endpoint | None]:
        """Create from a body in wire form; also returns the daemon's endpoint when the server tells it.

        A key of its own goes with every request: when an answer is lost the request is sent again, and
        the server hands out the same sandbox instead of a second one.
        """
        answer = await self._call(
            "POST",
            "/sandboxes",
            content=request,
            headers={"Idempotency-Key": idempotency_key or secrets.token_hex(16)},
            timeout=timeout,
            repeatable=True,
        )
        data = answer.json()
        return parse(SandboxInfo.read, data), self._told_endpoint(data)

    async def fork(
        self, sandbox_id: str, request: Mapping[str, Any], *, timeout: float | None = None
    ) -> Sequence[tuple[SandboxInfo, Endpoint | None]]:
        """Children of a running sandbox, all of them running, from a body in wire form."""
        path = f"/sandboxes/{quote(sandbox_id, safe='')}/forks"
        answer = await self._call("POST", path, content=request, timeout=timeout)
        items = answer.json()["items"]
        return [(parse(SandboxInfo.read, item), self._told_endpoint(item)) for item in items]

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        page: int = 1,
        page_size: int = 20,
    ) -> SandboxPage:
        """One page of the sandboxes in any of `states` that carry all of `metadata`."""
        query = [("state", state) for state in states]
        if metadata:
            query.append(("metadata", urlencode(dict(metadata), quote_via=quote)))
        query += [("page", str(page)), ("pageSize", str(page_size))]
        answer = await self._call("GET", f"/sandboxes?{urlencode(query, quote_via=quote, safe='')}")
        return parse(SandboxPage.read, answer.json())

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """One sandbox; NotFound when it is gone."""
        return parse(SandboxInfo.read, (await self._call("GET", _path(sandbox_id))).json())

    async def kill(self, sandbox_id: str) -> None:
        """End and remove a sandbox; NotFound when it is gone already."""
        await self._call("DELETE", _path(sandbox_id))

    async def pause(self, sandbox_id: str) -> None:
        """Freeze its processes; they keep everything but get no time."""
        await self._call("POST", _path(sandbox_id) + "/pause")

    async def resume(self, sandbox_id: str) -> None:
        """Let its processes go on."""
        await self._call("POST", _path(sandbox_id) + "/resume")

    async def renew(self, sandbox_id: str, timeout: Duration) -> datetime:
        """Let it live for `timeout` seconds from now, shorter or longer than before; returns its new end."""
        until = datetime.now(UTC) + timedelta(seconds=seconds("timeout", timeout))
        answer = await self._call(
            "POST", _path(sandbox_id) + "/renew-expiration", content={"expiresAt": until.isoformat()}
        )
        return parse(lambda data: moment(data["expiresAt"]), answer.json())

    async def patch_metadata(self, sandbox_id: str, changes: Mapping[str, str | None]) -> SandboxInfo:
        """Set the given keys, remove those whose value is None, leave the others."""
        answer = await self._call(
            "PATCH", _path(sandbox_id) + "/metadata", content=dict(changes), repeatable=True
        )
        return parse(SandboxInfo.read, answer.json())

    async def endpoint(self, sandbox_id: str, port: int, *, server_proxy: bool | None = None) -> Endpoint:
        """Where a port is reached, directly or through the server."""
        proxied = self.connection.use_server_proxy if server_proxy is None else server_proxy
        query = "?use_server_proxy=true" if proxied else ""
        answer = await self._call("GET", f"{_path(sandbox_id)}/endpoints/{port}{query}")
        found = parse(lambda data: Endpoint.read(data, self.connection.scheme), answer.json())
        return self._with_key(found) if proxied else found

    async def create_key(
        self,
        name: str,
        *,
        scopes: Iterable[str] = ("create",),
        limits: Mapping[str, Any] | None = None,
        shared_with: str | None = None,
    ) -> tuple[KeyInfo, str]:
        """Make an API key; returns it and its secret, which nobody can read again. Needs an admin key."""
        request: dict[str, Any] = {"name": name, "scopes": [*scopes], "limits": dict(limits or {})}
        if shared_with is not None:
            request["sharedWith"] = shared_with
        return parse(KeyInfo.read_new, (await self._call("POST", "/keys", content=request)).json())

    async def list_keys(self) -> Sequence[KeyInfo]:
        """Every API key but the server's own. Needs an admin key."""
        answer = (await self._call("GET", "/keys")).json()
        return parse(lambda data: [KeyInfo.read(item) for item in data["items"]], answer)

    async def rotate_key(self, name: str) -> tuple[KeyInfo, str]:
        """Give an API key another secret; the old one is void at once. Needs an admin key."""
        answer = await self._call("POST", f"/keys/{quote(name, safe='')}/rotate")
        return parse(KeyInfo.read_new, answer.json())

    async def remove_key(self, name: str) -> None:
        """Make an API key void; its sandboxes stay. Needs an admin key."""
        await self._call("DELETE", f"/keys/{quote(name, safe='')}")

    def _with_key(self, endpoint: Endpoint) -> Endpoint:
        """What passes through the server also shows the server's key."""
        return Endpoint(endpoint.address, {**self._key(), **endpoint.headers}, endpoint.scheme)

    def _told_endpoint(self, data: Any) -> Endpoint | None:
        told = data.get("casulo") if isinstance(data, dict) else None
        if not isinstance(told, dict) or self.connection.use_server_proxy:
            return None
        return parse(lambda data: Endpoint.read(data, self.connection.scheme), told)

    def _key(self) -> dict[str, str]:
        return {API_KEY_HEADER: self.connection.api_key} if self.connection.api_key else {}

    async def _plain(self, path: str) -> Answer:
        return await self.transport.request(
            "GET", self.connection.url + path, headers=self.connection.headers
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        content: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        body, kind = encode(content)
        return await self.transport.request(
            method,
            f"{self.connection.url}/v1{path}",
            headers={**self.connection.headers, **self._key(), **kind, **(headers or {})},
            body=body,
            timeout=timeout,
            repeatable=repeatable,
        )


def seconds(name: str, duration: Duration) -> float:
    """A duration in seconds; it must be above zero."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if value <= 0:
        raise InvalidRequest(f"{name}: {duration!r} is not above zero", code=Code.INVALID_PARAMETER)
    return value


def _path(sandbox_id: str) -> str:
    return f"/sandboxes/{quote(sandbox_id, safe='')}"
