# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A sandbox's network policy: reading and changing it, and what came of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from casulo.client.records import parse

if TYPE_CHECKING:
    from casulo.client.lifecycle import AsyncClient

Policy = Mapping[str, Any]
"""`{"defaultAction": "deny", "egress": [{"action": "allow", "target": "example.com"}]}`."""


class AsyncEgress:
    """The policy of one sandbox. Changes hold for new connections, and end those that they deny."""

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._path = f"/sandboxes/{quote(sandbox_id, safe='')}"

    async def get(self) -> dict[str, Any]:
        """The policy that holds."""
        return await self._policy("GET")

    async def set(self, policy: Policy) -> dict[str, Any]:
        """Replace the policy; returns the one that holds."""
        return await self._policy("PUT", dict(policy))

    async def allow(
        self,
        *targets: str,
        ports: Sequence[int | str] = (),
        protocols: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Allow names, `*.names`, addresses, networks or presets, before all rules that are there."""
        return await self._merge("allow", targets, ports, protocols)

    async def deny(
        self,
        *targets: str,
        ports: Sequence[int | str] = (),
        protocols: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Deny them, in the same way."""
        return await self._merge("deny", targets, ports, protocols)

    async def remove(self, *targets: str) -> dict[str, Any]:
        """Take the rules on these targets out; there may be none."""
        return await self._policy("DELETE", list(targets))

    async def test(self, url: str, *, method: str = "GET") -> dict[str, Any]:
        """What would become of a request, and which rule decides; nothing is sent."""
        body = {"url": url, "method": method}
        answer = await self._client._call("POST", f"{self._path}/egress/test", content=body)
        return parse(dict, answer.json())

    async def seen(self) -> list[dict[str, Any]]:
        """The destinations that it was allowed to reach, with counts."""
        answer = await self._client._call("GET", f"{self._path}/egress/seen")
        return parse(lambda data: list(data["items"]), answer.json())

    async def log(self, *, follow: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        """The last decisions; with `follow` also those to come, without an end."""
        query = "?follow=true" if follow else ""
        url = f"{self._client.connection.url}/v1{self._path}/egress/log{query}"
        headers = {**self._client.connection.headers, **self._client._key()}
        rest = b""
        async with self._client.transport.stream("GET", url, headers=headers) as incoming:
            async for piece in incoming.chunks:
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield json.loads(line)

    async def _policy(self, method: str, body: object = None) -> dict[str, Any]:
        answer = await self._client._call(method, f"{self._path}/networkpolicy", content=body)
        return parse(lambda data: dict(data["policy"]), answer.json())

    async def _merge(
        self, action: str, targets: Sequence[str], ports: Sequence[int | str], protocols: Sequence[str]
    ) -> dict[str, Any]:
        more = {"ports": list(ports) or None, "protocols": list(protocols) or None}
        rules = [{"action": action, "target": target, **more} for target in targets]
        return await self._policy("PATCH", rules)
