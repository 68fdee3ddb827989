# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Keeping files and making sandboxes of them with the official SDKs."""

from __future__ import annotations

import asyncio
import time

from opensandbox import Sandbox, SandboxManager
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import SnapshotFilter
from opensandbox.sync import SandboxManagerSync, SandboxSync

from scenarios.context import Context


async def snapshot_restore_delete(context: Context) -> None:
    async with context.manager() as manager:
        async with context.sandbox() as source:
            await source.commands.run("echo official > ~/kept")
            made = await source.create_snapshot("official")
            assert made.sandbox_id == source.id and made.name == "official"
            await _ready(manager, made.id)
            found = await manager.list_snapshots(SnapshotFilter(sandbox_id=source.id, states=["Ready"]))
            assert [item.id for item in found.snapshot_infos] == [made.id]
        restored = await Sandbox.create(snapshot_id=made.id, connection_config=context.config())
        try:
            said = await restored.commands.run("cat ~/kept")
            assert [m.text for m in said.logs.stdout] == ["official"]
            info = await restored.get_info()
            assert info.snapshot_id == made.id and info.image is None
            assert info.entrypoint == ["tail", "-f", "/dev/null"]
        finally:
            await restored.destroy()
        await manager.delete_snapshot(made.id)
        await _expect(404, manager.get_snapshot(made.id))
        await _expect(404, manager.delete_snapshot(made.id))


async def snapshot_of_a_paused_sandbox_is_refused(context: Context) -> None:
    async with context.manager() as manager, context.sandbox() as source:
        await source.pause()
        await _expect(409, manager.create_snapshot(source.id))
        await _expect(404, manager.create_snapshot("unknown"))


def snapshot_with_the_sync_sdk(context: Context) -> None:
    manager = SandboxManagerSync.create(connection_config=context.sync_config())
    try:
        with context.sync_sandbox() as source:
            source.commands.run("echo sync > ~/kept")
            made = manager.create_snapshot(source.id)
            deadline = time.monotonic() + 20
            while manager.get_snapshot(made.id).status.state != "Ready":
                assert time.monotonic() < deadline
                time.sleep(0.05)
        restored = SandboxSync.create(snapshot_id=made.id, connection_config=context.sync_config())
        try:
            assert restored.commands.run("cat ~/kept").logs.stdout[0].text == "sync"
        finally:
            restored.destroy()
        manager.delete_snapshot(made.id)
    finally:
        manager.close()


async def _ready(manager: SandboxManager, snapshot_id: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        status = (await manager.get_snapshot(snapshot_id)).status
        if status.state == "Ready":
            return
        assert status.state == "Creating" and time.monotonic() < deadline, status
        await asyncio.sleep(0.05)


async def _expect(status: int, call: object) -> None:
    try:
        await call  # type: ignore[misc]
    except SandboxApiException as error:
        assert error.status_code == status, error
    else:
        raise AssertionError(f"no error {status} was raised")
