# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Enforcing nothing, but remembering what was to be enforced; for tests of those who say so."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from casulo.model.policy import NetworkPolicy


class MemoryEgress:
    """`vaults` and `policies` are what holds; `error` spoils the next calls."""

    def __init__(self) -> None:
        self.vaults: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, NetworkPolicy] = {}
        self.error: Exception | None = None
        self.told = 0

    async def apply(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        if self.error:
            raise self.error
        self.policies[sandbox_id] = policy

    async def arm(self, sandbox_id: str, vault: Mapping[str, Any] | None) -> None:
        if self.error:
            raise self.error
        self.told += 1
        if vault is None:
            self.vaults.pop(sandbox_id, None)
        else:
            self.vaults[sandbox_id] = copy.deepcopy(dict(vault))

    async def state(self, sandbox_id: str) -> dict[str, Any]:
        return {}

    async def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        return []

    async def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        return {}

    async def log(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
        for line in ():
            yield line
