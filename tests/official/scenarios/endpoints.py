# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Endpoints in both forms, and what is behind them."""

from __future__ import annotations

import asyncio

import httpx
from opensandbox.models.execd import RunCommandOpts

from scenarios.context import Context

SERVE = "cd /tmp && echo served-from-inside > page.txt && exec python3 -m http.server {port}"


async def daemon_endpoint(context: Context) -> None:
    async with context.sandbox() as sandbox:
        found = await sandbox.get_endpoint(44772)
        assert "://" not in found.endpoint and found.endpoint
        host, slash, path = found.endpoint.partition("/")
        assert host.rpartition(":")[2].isdigit()
        assert not slash or path.endswith("44772")
        if context.proxy:
            assert f"/sandboxes/{sandbox.id}/proxy/44772" in found.endpoint


async def user_port(context: Context) -> None:
    async with context.sandbox() as sandbox:
        await sandbox.commands.run(SERVE.format(port=8123), opts=RunCommandOpts(background=True))
        found = await sandbox.get_endpoint(8123)
        assert "://" not in found.endpoint and found.endpoint.endswith("/8123")
        headers = {**found.headers, "OPEN-SANDBOX-API-KEY": context.api_key}
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(100):
                answer = await client.get(f"http://{found.endpoint}/page.txt", headers=headers)
                if answer.status_code == 200:
                    break
                await asyncio.sleep(0.05)
        assert answer.text == "served-from-inside\n", (answer.status_code, answer.text)
