# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Commands with the official asynchronous SDK: streams, background, logs, interrupt, timeout."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from opensandbox import Sandbox
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts

from scenarios.context import Context

FRESH_MS = 60_000


class Recorder:
    """Streaming handlers that note every event in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.init = asyncio.Event()

    @property
    def handlers(self) -> ExecutionHandlers:
        kinds = ("stdout", "stderr", "result", "execution_complete", "error", "init")
        return ExecutionHandlers(**{f"on_{kind}": self._handler(kind) for kind in kinds})

    def _handler(self, kind: str) -> Any:
        async def note(event: Any) -> None:
            self.events.append((kind, event))
            if kind == "init":
                self.init.set()

        return note

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


async def echo(context: Context) -> None:
    async with context.sandbox() as sandbox:
        recorder = Recorder()
        done = await sandbox.commands.run("echo 'hello there'", handlers=recorder.handlers)
        assert [m.text for m in done.logs.stdout] == ["hello there"]
        assert not done.logs.stderr and done.error is None
        assert done.exit_code == 0 and done.complete is not None
        assert recorder.kinds() == ["init", "stdout", "execution_complete"]
        assert recorder.events[0][1].id == done.id
        assert abs(done.logs.stdout[0].timestamp - time.time() * 1000) < FRESH_MS


async def live_output(context: Context) -> None:
    async with context.sandbox() as sandbox:
        arrivals: list[float] = []

        async def note(message: Any) -> None:
            arrivals.append(time.monotonic())

        await sandbox.commands.run(
            "for i in 1 2 3; do echo $i; sleep 0.3; done", handlers=ExecutionHandlers(on_stdout=note)
        )
        assert len(arrivals) == 3
        assert arrivals[1] - arrivals[0] > 0.15 and arrivals[2] - arrivals[1] > 0.15


async def working_directory_and_environment(context: Context) -> None:
    async with context.sandbox() as sandbox:
        run = sandbox.commands.run
        where = await run("pwd", opts=RunCommandOpts(working_directory="/tmp"))
        assert [m.text for m in where.logs.stdout] == ["/tmp"]
        told = await run('echo "[$WORD]"', opts=RunCommandOpts(envs={"WORD": "a b"}))
        assert told.logs.stdout[0].text == "[a b]"
        untold = await run('echo "[$WORD]"')
        assert untold.logs.stdout[0].text == "[]"


async def failure(context: Context) -> None:
    async with context.sandbox() as sandbox:
        recorder = Recorder()
        done = await sandbox.commands.run("no-such-program-here --version", handlers=recorder.handlers)
        assert done.error is not None and done.error.name == "CommandExecError"
        assert done.exit_code == int(done.error.value) == 127
        assert done.complete is None
        assert any("no-such-program-here" in m.text for m in done.logs.stderr)
        assert recorder.kinds().count("init") == 1 and recorder.kinds()[-1] == "error"


async def argv_without_a_shell(context: Context) -> None:
    async with context.sandbox() as sandbox:
        done = await sandbox.commands.run(["printf", "%s|%s", "$HOME", "a  b"])
        assert done.logs.stdout[0].text == "$HOME|a  b"
        missing = await sandbox.commands.run(["no-such-program-here"])
        assert missing.error is not None and missing.complete is None


async def background(context: Context) -> None:
    async with context.sandbox() as sandbox:
        begun = time.monotonic()
        started = await sandbox.commands.run("sleep 30", opts=RunCommandOpts(background=True))
        assert time.monotonic() - begun < 10
        assert started.exit_code is None and started.id
        status = await sandbox.commands.get_command_status(started.id)
        assert status.id == started.id and status.running is True
        await sandbox.commands.interrupt(started.id)
        assert not (await _until_ended(sandbox, started.id)).running


async def background_logs(context: Context) -> None:
    async with context.sandbox() as sandbox:
        started = await sandbox.commands.run(
            "echo first; sleep 0.5; echo second >&2; exit 3", opts=RunCommandOpts(background=True)
        )
        content, cursor = "", None
        for _ in range(100):
            piece = await sandbox.commands.get_background_command_logs(started.id, cursor=cursor)
            content, cursor = content + piece.content, piece.cursor
            if "second" in content:
                break
            await asyncio.sleep(0.05)
        assert content == "first\nsecond\n", content
        ended = await _until_ended(sandbox, started.id)
        assert ended.exit_code == 3 and ended.running is False


async def interrupt(context: Context) -> None:
    async with context.sandbox() as sandbox:
        recorder = Recorder()
        running = asyncio.create_task(
            sandbox.commands.run("echo started; sleep 120", handlers=recorder.handlers)
        )
        await asyncio.wait_for(recorder.init.wait(), 15)
        execution_id = recorder.events[0][1].id
        await sandbox.commands.interrupt(execution_id)
        done = await asyncio.wait_for(running, 20)
        assert done.id == execution_id
        assert done.error is not None and done.error.name and done.error.value


async def timeout(context: Context) -> None:
    async with context.sandbox() as sandbox:
        begun = time.monotonic()
        done = await sandbox.commands.run(
            "echo before; sleep 60", opts=RunCommandOpts(timeout=timedelta(seconds=1))
        )
        assert time.monotonic() - begun < 10
        assert [m.text for m in done.logs.stdout] == ["before"]
        assert done.error is not None and done.complete is None


async def two_streams_of_long_lines(context: Context) -> None:
    script = (
        "import sys\n"
        "for i in range(513):\n"
        "    sys.stdout.write(f'{i:04d}' + 'o' * 4092 + '\\n')\n"
        "    sys.stderr.write(f'{i:04d}' + 'e' * 4092 + '\\n')\n"
        "sys.stdout.write('tail-\u00e9')\n"
        "sys.exit(7)\n"
    )
    async with context.sandbox() as sandbox:
        await sandbox.files.write_file("/tmp/lines.py", script)
        done = await sandbox.commands.run("PYTHONIOENCODING=utf-8 python3 /tmp/lines.py")
        assert [m.text[:4] for m in done.logs.stdout[:-1]] == [f"{i:04d}" for i in range(513)]
        assert [m.text[:4] for m in done.logs.stderr] == [f"{i:04d}" for i in range(513)]
        assert all(len(m.text) == 4096 for m in done.logs.stderr)
        assert done.logs.stdout[-1].text == "tail-\u00e9"
        assert done.exit_code == 7 and done.complete is None


async def set_env(context: Context) -> None:
    values = ["two words", "it's", 'say "hi"', "a$b", "line\nline", "back\\slash"]
    async with context.sandbox() as sandbox:
        for number, value in enumerate(values):
            await sandbox.commands.set_env(f"VALUE_{number}", value)
        await sandbox.commands.set_env("VALUE_0", "last wins")
        for number, value in enumerate(["last wins", *values[1:]]):
            done = await sandbox.commands.run(
                ["python3", "-c", f"import os; print(ascii(os.environ['VALUE_{number}']))"]
            )
            assert done.text == ascii(value), (done.text, value)


async def identity(context: Context) -> None:
    async with context.sandbox() as sandbox:
        done = await sandbox.commands.run("id -u; id -g", opts=RunCommandOpts(uid=1000, gid=1000))
        assert [m.text for m in done.logs.stdout] == ["1000", "1000"]


async def unknown_command(context: Context) -> None:
    async with context.sandbox() as sandbox:
        try:
            await sandbox.commands.get_command_status("0" * 32)
        except SandboxException:
            return
        raise AssertionError("an unknown command has a status")


async def _until_ended(sandbox: Sandbox, execution_id: str) -> Any:
    for _ in range(100):
        status = await sandbox.commands.get_command_status(execution_id)
        if not status.running:
            return status
        await asyncio.sleep(0.1)
    raise AssertionError("the command never ended")
