# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The same life with the official synchronous SDK."""

from __future__ import annotations

import io
import threading
import time
from datetime import timedelta
from typing import Any

from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import WriteEntry
from opensandbox.models.sandboxes import SandboxFilter
from opensandbox.sync import SandboxManagerSync, SandboxSync

from scenarios.context import Context


def life(context: Context) -> None:
    with context.sync_sandbox(metadata={"sync": "yes"}, timeout=timedelta(minutes=5)) as sandbox:
        assert sandbox.is_healthy()
        assert sandbox.get_info().status.state == "Running"
        assert sandbox.get_metrics().memory_total_in_mib > 0
        renewed = sandbox.renew(timedelta(minutes=20))
        assert renewed.expires_at == sandbox.get_info().expires_at
        manager = SandboxManagerSync.create(connection_config=context.sync_config())
        found = manager.list_sandbox_infos(SandboxFilter(metadata={"sync": "yes"}))
        assert sandbox.id in {info.id for info in found.sandbox_infos}
        manager.close()


def commands(context: Context) -> None:
    with context.sync_sandbox() as sandbox:
        lines: list[str] = []
        handlers = ExecutionHandlersSync(on_stdout=lambda message: lines.append(message.text))
        done = sandbox.commands.run("echo one; echo two", handlers=handlers)
        assert lines == ["one", "two"] and done.exit_code == 0
        failed = sandbox.commands.run("exit 9")
        assert failed.exit_code == 9 and failed.error is not None
        limited = sandbox.commands.run("sleep 60", opts=RunCommandOpts(timeout=timedelta(seconds=1)))
        assert limited.error is not None


def background_and_interrupt(context: Context) -> None:
    with context.sync_sandbox() as sandbox:
        started = sandbox.commands.run("echo up; sleep 60", opts=RunCommandOpts(background=True))
        _wait(lambda: "up" in sandbox.commands.get_background_command_logs(started.id).content)
        sandbox.commands.interrupt(started.id)
        _wait(lambda: not sandbox.commands.get_command_status(started.id).running)


def interrupt_from_another_thread(context: Context) -> None:
    with context.sync_sandbox() as sandbox:
        begun, ids = threading.Event(), []

        def on_init(event: Any) -> None:
            ids.append(event.id)
            begun.set()

        def stop() -> None:
            assert begun.wait(15)
            sandbox.commands.interrupt(ids[0])

        stopper = threading.Thread(target=stop)
        stopper.start()
        done = sandbox.commands.run("sleep 60", handlers=ExecutionHandlersSync(on_init=on_init))
        stopper.join()
        assert done.id == ids[0] and done.error is not None


def files(context: Context) -> None:
    with context.sync_sandbox() as sandbox:
        sandbox.files.write_files(
            [WriteEntry(path="/tmp/s/a", data="alpha"), WriteEntry(path="/tmp/s/b", data=io.BytesIO(b"beta"))]
        )
        assert sandbox.files.read_file("/tmp/s/a") == "alpha"
        assert sandbox.files.read_bytes("/tmp/s/b") == b"beta"
        assert sandbox.files.get_file_info(["/tmp/s/b"])["/tmp/s/b"].size == 4
        sandbox.files.delete_files(["/tmp/s/a"])


def pause_and_resume(context: Context) -> None:
    with context.sync_sandbox() as sandbox:
        sandbox.pause()
        _wait(lambda: sandbox.get_info().status.state == "Paused")
        resumed = SandboxSync.resume(sandbox.id, connection_config=context.sync_config())
        assert resumed.commands.run("echo resume-ok").text == "resume-ok"
        resumed.close()


def _wait(condition: Any) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("the condition never became true")
