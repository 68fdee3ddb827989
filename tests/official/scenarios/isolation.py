# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Isolated sessions with the official SDK, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from opensandbox import Sandbox
from opensandbox.exceptions import SandboxApiException, SandboxException
from opensandbox.models.filesystem import ContentReplaceEntry, SearchEntry, WriteEntry
from opensandbox.models.isolated import (
    BindMount,
    CreateIsolatedSessionRequest,
    IsolatedOverlaySpec,
    IsolatedRunOpts,
    IsolatedWorkspaceSpec,
)

from scenarios.context import Context

EXTENSION = {"bootstrap.execd.isolation": "enable"}


@asynccontextmanager
async def _nest(context: Context) -> AsyncIterator[Sandbox | None]:
    """A sandbox with the extension; None where the runtime has no isolated sessions, and says so."""
    try:
        async with context.sandbox(extensions=EXTENSION) as sandbox:
            prepared = await sandbox.commands.run("mkdir -p /workspace /data && echo seed > /workspace/seed")
            assert prepared.exit_code == 0
            yield sandbox
    except SandboxException as error:
        if "isolated sessions are not available here" not in str(error):
            raise
        yield None


def _request(mode: str | None = None, **options: Any) -> CreateIsolatedSessionRequest:
    return CreateIsolatedSessionRequest(
        workspace=IsolatedWorkspaceSpec(path="/workspace", mode=mode), **options
    )


async def capabilities_without_the_extension(context: Context) -> None:
    async with context.sandbox() as sandbox:
        told = await sandbox.isolation.capabilities()
        assert told.available is False and told.message
        try:
            await sandbox.isolation.create(_request())
        except SandboxApiException as error:
            assert error.status_code == 503
        else:
            raise AssertionError("a session was made without the extension")


async def session(context: Context) -> None:
    async with _nest(context) as sandbox:
        if sandbox is None:
            return
        told = await sandbox.isolation.capabilities()
        assert told.available and told.hardening is not None and told.hardening.init_mode == "pid1"
        made = await sandbox.isolation.create(_request("rw", idle_timeout_seconds=600))
        UUID(made.session_id)
        assert made.info.profile == "strict" and made.info.overlays is not None
        done = await made.run("echo $$")
        assert done.exit_code == 0 and int(done.logs.stdout[0].text) <= 2
        await made.run("export WORD=kept; echo written > /workspace/out")
        outside = await sandbox.commands.run("cat /workspace/out")
        assert outside.logs.stdout[0].text == "written"
        again = await made.run("echo $WORD; echo $EXTRA", opts=IsolatedRunOpts(envs={"EXTRA": "x"}))
        assert [m.text for m in again.logs.stdout] == ["kept", "x"]
        failed = await made.run("exit 3")
        assert failed.exit_code == 3 and failed.error is not None and failed.error.name == "ExitError"
        late = await made.run("sleep 30", opts=IsolatedRunOpts(timeout_seconds=1))
        assert late.error is not None and late.error.name == "RuntimeError"
        attached = await sandbox.isolation.attach(made.session_id)
        state = await attached.get()
        assert state.status == "active" and state.idle_remaining_seconds is not None
        assert [s.session_id for s in await sandbox.isolation.list()] == [made.session_id]
        await made.delete()
        assert await sandbox.isolation.list() == []


async def modes_and_binds(context: Context) -> None:
    async with _nest(context) as sandbox:
        if sandbox is None:
            return
        closed = await sandbox.isolation.create(_request("ro", binds=[BindMount(source="/data")]))
        assert (await closed.run("touch /workspace/no")).exit_code
        assert (await closed.run("echo shared > /data/file")).exit_code == 0
        assert (await sandbox.commands.run("cat /data/file")).logs.stdout[0].text == "shared"
        layers = [IsolatedOverlaySpec(path="/workspace", mode="overlay", persist=False)]
        shadow = await sandbox.isolation.create(CreateIsolatedSessionRequest(overlays=layers))
        assert (await shadow.run("echo gone > /workspace/seed")).exit_code == 0
        assert (await sandbox.commands.run("cat /workspace/seed")).logs.stdout[0].text == "seed"


async def background(context: Context) -> None:
    async with _nest(context) as sandbox:
        if sandbox is None:
            return
        made = await sandbox.isolation.create(_request("rw"))
        started = await made.run_background("echo early; sleep 0.3; echo late; exit 7")
        UUID(started.run_id)
        assert (await made.run_status(started.run_id)).running
        for _ in range(100):
            status = await made.run_status(started.run_id)
            if not status.running:
                break
            await asyncio.sleep(0.1)
        assert (status.running, status.exit_code, status.error) == (False, 7, None)
        logs = await made.run_logs(started.run_id)
        assert logs.text == "early\nlate\n" and logs.cursor == len(logs.text)
        assert (await made.run_logs(started.run_id, cursor=6)).text == "late\n"
        try:
            await made.run_status(str(uuid4()))
        except SandboxApiException as error:
            assert error.status_code == 404
        else:
            raise AssertionError("an unknown run has a status")


async def files(context: Context) -> None:
    async with _nest(context) as sandbox:
        if sandbox is None:
            return
        made = await sandbox.isolation.create(_request())
        await made.files.write_files([WriteEntry(path="/workspace/a.txt", data="one two", mode=644)])
        assert await made.files.read_file("/workspace/a.txt") == "one two"
        replaced = ContentReplaceEntry(path="/workspace/a.txt", old_content="two", new_content="2")
        await made.files.replace_contents([replaced])
        assert (await made.run("cat /workspace/a.txt")).logs.stdout[0].text == "one 2"
        found = await made.files.search(SearchEntry(path="/workspace", pattern="*.txt"))
        assert [entry.path for entry in found] == ["/workspace/a.txt"]
        info = await made.files.get_file_info(["/workspace/a.txt"])
        assert info["/workspace/a.txt"].size == 5
        await made.files.delete_files(["/workspace/a.txt"])
        assert (await made.run("ls /workspace")).logs.stdout[0].text == "seed"


def synchronous(context: Context) -> None:
    try:
        with context.sync_sandbox(extensions=EXTENSION) as sandbox:
            sandbox.commands.run("mkdir -p /workspace")
            made = sandbox.isolation.create(_request("rw"))
            assert made.run("echo hello").logs.stdout[0].text == "hello"
            made.files.write_file("/workspace/f", "x")
            assert made.files.read_file("/workspace/f") == "x"
            made.delete()
    except SandboxException as error:
        if "isolated sessions are not available here" not in str(error):
            raise
