# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official MCP server, started on standard input and output as an agent would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from scenarios.context import Context


async def tools(context: Context) -> None:
    async with Client(_parameters(context)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"sandbox_create", "command_run", "file_write", "sandbox_kill"} <= names
        created = await _call(client, "sandbox_create", image=context.image, metadata={"via": "mcp"})
        box = created["sandbox_id"]
        try:
            await _use(client, box)
        finally:
            await _call(client, "sandbox_kill", sandbox_id=box)


async def _use(client: Client, box: str) -> None:
    assert (await _call(client, "sandbox_healthcheck", sandbox_id=box))["healthy"] is True
    done = await _call(client, "command_run", sandbox_id=box, command="echo from-mcp")
    assert done["exit_code"] == 0 and done["logs"]["stdout"][0]["text"] == "from-mcp"
    await _call(client, "file_write", sandbox_id=box, path="/tmp/m/x", content="written")
    read = await _call(client, "file_read", sandbox_id=box, path="/tmp/m/x")
    assert read["content"] == "written"
    listed = await _call(client, "sandbox_list", filter={"metadata": {"via": "mcp"}})
    assert box in {info["id"] for info in listed["sandbox_infos"]}
    await _call(client, "sandbox_renew", sandbox_id=box, timeout_seconds=1200)
    await _call(client, "sandbox_get_metrics", sandbox_id=box)
    found = await _call(client, "sandbox_get_endpoint", sandbox_id=box, port=8080)
    assert str(found["endpoint"]).endswith("8080")
    await _call(client, "file_delete", sandbox_id=box, paths=["/tmp/m/x"])


def _parameters(context: Context) -> StdioServerParameters:
    program = Path(sys.executable).with_name("opensandbox-mcp")
    arguments = ["--transport", "stdio", "--api-key", context.api_key, "--domain", context.domain]
    return StdioServerParameters(
        command=str(program), args=[*arguments, *(["--use-server-proxy"] if context.proxy else [])]
    )


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    text = answer.content[0].text if answer.content else "{}"
    assert not answer.is_error, f"{tool}: {text}"
    return json.loads(text)
