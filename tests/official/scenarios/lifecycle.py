# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Creating, looking, extending, pausing and ending with the official asynchronous SDK."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from opensandbox import Sandbox
from opensandbox.exceptions import SandboxApiException, SandboxException

from scenarios.context import Context


async def create_with_defaults(context: Context) -> None:
    before = datetime.now(UTC)
    sandbox = await Sandbox.create(context.image, connection_config=context.config())
    try:
        assert isinstance(sandbox.id, str) and sandbox.id
        assert await sandbox.is_healthy()
        info = await sandbox.get_info()
        assert info.id == sandbox.id
        assert info.status.state == "Running", info.status
        assert info.entrypoint[-3:] == ["tail", "-f", "/dev/null"]
        assert info.image is not None and info.image.image == context.image
        assert info.expires_at is not None
        assert timedelta(minutes=9) < info.expires_at - info.created_at < timedelta(minutes=11)
        assert abs(info.created_at - before) < timedelta(seconds=30)
    finally:
        await sandbox.destroy()


async def create_with_everything(context: Context) -> None:
    options = {
        "timeout": timedelta(minutes=5),
        "metadata": {"tag": "official", "example.com/part": "e2e.1"},
        "env": {"GREETING": "good day"},
        "resource": {"cpu": "500m", "memory": "256Mi"},
        "entrypoint": ["sh", "-c", "sleep 1000", "tail", "-f", "/dev/null"],
        "extensions": {"opensandbox.extensions.team": "blue"},
    }
    async with context.sandbox(**options) as sandbox:
        info = await sandbox.get_info()
        assert info.metadata == options["metadata"]
        assert info.entrypoint == options["entrypoint"]
        assert (info.extensions or {}).get("opensandbox.extensions.team") == "blue"
        assert timedelta(minutes=4) < info.expires_at - info.created_at < timedelta(minutes=6)
        said = await sandbox.commands.run('echo "$GREETING"')
        assert said.logs.stdout[0].text == "good day"


async def manual_cleanup(context: Context) -> None:
    async with context.sandbox(timeout=None, metadata={"kind": "manual"}) as sandbox:
        info = await sandbox.get_info()
        assert info.expires_at is None
        assert info.metadata == {"kind": "manual"}
        try:
            await sandbox.renew(timedelta(minutes=5))
        except SandboxApiException as error:
            assert error.status_code == 409, error
        else:
            raise AssertionError("a sandbox without expiry was renewed")


async def renew(context: Context) -> None:
    async with context.sandbox(timeout=timedelta(minutes=5)) as sandbox:
        before = await sandbox.get_info()
        answer = await sandbox.renew(timedelta(minutes=20))
        after = await sandbox.get_info()
        assert answer.expires_at > before.expires_at
        assert abs(answer.expires_at - after.expires_at) < timedelta(seconds=10)
        remaining = after.expires_at - datetime.now(UTC)
        assert timedelta(minutes=18) < remaining < timedelta(minutes=22)
        assert (after.id, after.status.state) == (before.id, before.status.state)


async def renew_may_shorten(context: Context) -> None:
    async with context.sandbox(timeout=timedelta(minutes=20)) as sandbox:
        answer = await sandbox.renew(timedelta(minutes=2))
        assert answer.expires_at - datetime.now(UTC) < timedelta(minutes=3)


async def connect(context: Context) -> None:
    async with context.sandbox() as sandbox:
        other = await Sandbox.connect(sandbox.id, connection_config=context.config())
        try:
            assert await other.is_healthy()
            said = await other.commands.run("echo connect-ok")
            assert [m.text for m in said.logs.stdout] == ["connect-ok"]
        finally:
            await other.close()


async def request_id_comes_back(context: Context) -> None:
    config = context.config(headers={"X-Request-ID": "official-suite-1"})
    try:
        await Sandbox.connect("no-such-sandbox", connection_config=config)
    except SandboxException as error:
        assert error.request_id == "official-suite-1", error
        assert getattr(error, "status_code", 404) == 404
    else:
        raise AssertionError("an unknown sandbox was found")


async def patch_metadata(context: Context) -> None:
    async with context.sandbox(metadata={"env": "test", "team": "red"}) as sandbox:
        info = await sandbox.patch_metadata({"env": "stage", "team": None})
        assert info.metadata == {"env": "stage"}
        assert (await sandbox.get_info()).metadata == {"env": "stage"}


async def metrics(context: Context) -> None:
    async with context.sandbox(resource={"cpu": "1", "memory": "256Mi"}) as sandbox:
        found = await sandbox.get_metrics()
        assert found.cpu_count > 0
        assert 0 <= found.cpu_used_percentage <= 100
        assert 0 <= found.memory_used_in_mib <= found.memory_total_in_mib
        assert found.memory_total_in_mib > 0
        taken = datetime.fromtimestamp(found.timestamp / 1000, UTC)
        assert abs(datetime.now(UTC) - taken) < timedelta(minutes=2)


async def pause_and_resume(context: Context) -> None:
    async with context.sandbox() as sandbox:
        await sandbox.commands.run("echo kept > /tmp/kept")
        await sandbox.pause()
        await _wait_for_state(sandbox, "Paused")
        resumed = await Sandbox.resume(sandbox.id, connection_config=context.config())
        try:
            await _wait_for_state(resumed, "Running")
            assert await resumed.is_healthy()
            said = await resumed.commands.run("echo resume-ok; cat /tmp/kept")
            assert [m.text for m in said.logs.stdout] == ["resume-ok", "kept"]
        finally:
            await resumed.close()


async def pause_twice_is_a_conflict(context: Context) -> None:
    async with context.sandbox() as sandbox, context.manager() as manager:
        await manager.pause_sandbox(sandbox.id)
        await _wait_for_state(sandbox, "Paused")
        await _expect_status(409, manager.pause_sandbox(sandbox.id))
        await manager.resume_sandbox(sandbox.id)
        await _wait_for_state(sandbox, "Running")
        await _expect_status(409, manager.resume_sandbox(sandbox.id))


async def kill(context: Context) -> None:
    async with context.manager() as manager:
        sandbox = await Sandbox.create(
            context.image, connection_config=context.config(), metadata={"kill": "me"}
        )
        await sandbox.kill()
        await _expect_status(404, manager.get_sandbox_info(sandbox.id))
        await _expect_status(404, manager.kill_sandbox(sandbox.id))
        await sandbox.close()


async def unsupported_things_are_refused(context: Context) -> None:
    for options in (
        {"resource": {"cpu": "1", "gpu": "1"}},
        {"resource": {"cpu": "lots"}},
        {"secure_access": True},
        {"metadata": {"opensandbox.io/x": "y"}},
    ):
        await _expect_status(
            400, Sandbox.create(context.image, connection_config=context.config(), **options)
        )


async def _wait_for_state(sandbox: Sandbox, state: str) -> None:
    for _ in range(100):
        if (await sandbox.get_info()).status.state == state:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never became {state}: {(await sandbox.get_info()).status}")


async def _expect_status(status: int, call: object) -> None:
    try:
        await call
    except SandboxApiException as error:
        assert error.status_code == status, error
    else:
        raise AssertionError(f"expected status {status}")
