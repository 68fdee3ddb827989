# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Named volumes when the server is killed: nothing is lost, nothing is left over."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from casulo.client import (
    AsyncClient,
    AsyncSandbox,
    Connection,
    Volume,
)
from support.server import Server


async def test_crash_and_restart(new_server: Callable[..., Server]) -> None:
    server = new_server("local")
    kept, passing = Volume.named("kept", "/k"), Volume.named("passing", "/p", delete_with_sandbox=True)
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        box = await AsyncSandbox.create(volumes=[kept, passing], client=client)
        await box.commands.run("echo 1 > /k/x; echo 2 > /p/x")
    server.crash()
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        again = await AsyncSandbox.connect(box.id, client=client)
        assert (await again.commands.run("cat /k/x /p/x")).stdout == "1\n2\n"
        await client.kill(box.id)
    assert os.listdir(server.data_dir / "volumes") == ["kept"]


async def test_killed_between_volume_and_sandbox(new_server: Callable[..., Server]) -> None:
    server = new_server("local")
    volume = {"name": "p", "mountPath": "/p", "pvc": {"claimName": "p", "deleteOnSandboxTermination": True}}
    body = {"image": {"uri": "host"}, "resourceLimits": {}, "timeout": 600, "volumes": [volume]}
    for milliseconds in (8, 30):
        making = threading.Thread(target=_post_quietly, args=(server, body))
        making.start()
        await asyncio.sleep(milliseconds / 1000)
        server.crash()
        making.join()
        server.start()
    server.delete_all()
    deadline = time.monotonic() + 10
    while os.listdir(server.data_dir / "volumes") and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert os.listdir(server.data_dir / "volumes") == []


def _post_quietly(server: Server, body: dict[str, Any]) -> None:
    try:
        server.request("POST", "/v1/sandboxes", json=body)
    except OSError:
        return
    except Exception as error:  # the server was killed meanwhile, which httpx has a name for
        assert type(error).__module__.startswith("httpx"), error
