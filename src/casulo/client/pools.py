# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools of the server: sandboxes that are started before anybody asks. Changing them needs an admin key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from casulo.client.records import moment, parse
from casulo.client.transport import Answer


@dataclass(frozen=True)
class PoolInfo:
    """A pool as the server describes it: `available` members wait, `allocated` ones are in use."""

    name: str
    image: str
    resource_limits: Mapping[str, str]
    buffer_min: int
    buffer_max: int
    available: int
    allocated: int
    trouble: str
    created_at: datetime

    @staticmethod
    def read(data: Any) -> PoolInfo:
        """From the wire's pool object."""
        capacity, status, template = data["capacitySpec"], data["status"], data["template"]
        return PoolInfo(
            name=str(data["name"]),
            image=str(template["image"]["uri"]),
            resource_limits=dict(template.get("resourceLimits") or {}),
            buffer_min=int(capacity["bufferMin"]),
            buffer_max=int(capacity["bufferMax"]),
            available=int(status["available"]),
            allocated=int(status["allocated"]),
            trouble=str(status.get("trouble") or ""),
            created_at=moment(data["createdAt"]),
        )


class AsyncPools:
    """`client.pools`."""

    def __init__(self, call: Callable[..., Awaitable[Answer]]) -> None:
        self._call = call

    async def create(
        self,
        name: str,
        template: Mapping[str, Any],
        *,
        minimum: int,
        maximum: int,
        refuse_when_empty: bool = False,
    ) -> PoolInfo:
        """Keep `minimum` to `maximum` members ready; `template` is in wire form, at least an image."""
        request = {
            "name": name,
            "template": dict(template),
            "capacitySpec": {"bufferMin": minimum, "bufferMax": maximum},
            "refuseWhenEmpty": refuse_when_empty,
        }
        return parse(PoolInfo.read, (await self._call("POST", "/pools", content=request)).json())

    async def list(self) -> Sequence[PoolInfo]:
        """All pools."""
        answer = (await self._call("GET", "/pools")).json()
        return parse(lambda data: [PoolInfo.read(item) for item in data["items"]], answer)

    async def get(self, name: str) -> PoolInfo:
        """One pool."""
        return parse(PoolInfo.read, (await self._call("GET", _path(name))).json())

    async def resize(self, name: str, *, minimum: int, maximum: int) -> PoolInfo:
        """Keep another number ready; sandboxes in use are not touched."""
        request = {"capacitySpec": {"bufferMin": minimum, "bufferMax": maximum}}
        return parse(PoolInfo.read, (await self._call("PUT", _path(name), content=request)).json())

    async def delete(self, name: str) -> None:
        """Give up a pool; sandboxes in use stay."""
        await self._call("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/pools/{quote(name, safe='')}"
