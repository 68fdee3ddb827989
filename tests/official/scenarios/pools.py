# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools that the official SDK keeps by itself: idle sandboxes with a day to live, renewed when taken."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from opensandbox import InMemoryAsyncPoolStateStore, PoolCreationSpec, SandboxPoolAsync
from opensandbox.models.sandboxes import SandboxFilter
from opensandbox.pool_types import AcquirePolicy

from scenarios.context import Context


async def life(context: Context) -> None:
    pool = SandboxPoolAsync(
        pool_name="agents",
        max_idle=3,
        state_store=InMemoryAsyncPoolStateStore(),
        connection_config=context.config(),
        creation_spec=PoolCreationSpec(image=context.image, metadata={"kept": "ahead"}),
    )
    async with pool, context.manager() as manager:
        await _idle(pool, 3)
        waiting = {entry.sandbox_id for entry in await pool.snapshot_idle_entries()}
        for sandbox_id in waiting:
            left = (await manager.get_sandbox_info(sandbox_id)).expires_at - datetime.now(UTC)
            assert timedelta(hours=23) < left <= timedelta(hours=24), left
        dead = sorted(waiting)[0]
        await manager.kill_sandbox(dead)
        retry = AcquirePolicy.RETRY_NEXT_IDLE_THEN_CREATE
        taken = await asyncio.gather(*(pool.acquire(timedelta(minutes=5), retry) for _ in range(5)))
        ids = [sandbox.id for sandbox in taken]
        assert len(set(ids)) == 5 and dead not in ids and set(ids) & waiting
        for sandbox in taken:
            assert (await sandbox.commands.run("echo works")).logs.stdout[0].text == "works"
            left = (await sandbox.get_info()).expires_at - datetime.now(UTC)
            assert left <= timedelta(minutes=5), left
        await asyncio.gather(*(sandbox.destroy() for sandbox in taken))
        await _idle(pool, 3)
        again = {entry.sandbox_id for entry in await pool.snapshot_idle_entries()}
        assert not again & set(ids), "a used sandbox is never handed out again"
        await pool.resize(0)
        await pool.release_all_idle()
        for _ in range(200):
            listed = await manager.list_sandbox_infos(SandboxFilter(metadata={"kept": "ahead"}))
            if not listed.sandbox_infos:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"left: {listed.sandbox_infos}")


async def _idle(pool: SandboxPoolAsync, wanted: int) -> None:
    for _ in range(300):
        if (await pool.snapshot()).idle_count == wanted:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not {wanted} idle: {await pool.snapshot()}")
