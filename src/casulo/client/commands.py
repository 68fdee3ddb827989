# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Running commands in a sandbox: live output, exact bytes, an end that is always told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from casulo.client import running
from casulo.client.channel import Channel
from casulo.client.multipart import Source
from casulo.client.results import (
    Capture,
    CommandStatus,
    Handler,
    Logs,
    Result,
)
from casulo.client.stream import Event, Exit
from casulo.client.supply import feed, interrupt
from casulo.model.errors import Code, InvalidRequest, TimedOut

Command = str | Sequence[str]
_FIRST_POLL = 0.02
_SLOWEST_POLL = 0.5


class AsyncCommands:
    """The commands of one sandbox. A text runs through the shell, a list of words without one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        uid: int | None = None,
        gid: int | None = None,
        stdin: Source | None = None,
        on_stdout: Handler | None = None,
        on_stderr: Handler | None = None,
        capture: bool = True,
    ) -> Result:
        """Run to the end. Handlers get text as it arrives and may be coroutines.

        `stdin` is text, bytes, a file or an iterable of bytes; without it the command reads nothing.
        `timeout` seconds after its start the command is killed with all its children. Without `capture`
        nothing is kept, which is what endless output needs. When the caller gives up (cancellation, or a
        handler that raises), the command is interrupted.
        """
        capturing = Capture(on_stdout, on_stderr, keep=capture)
        body = request_body(command, cwd=cwd, env=env, timeout=timeout, uid=uid, gid=gid)
        follower = self._follower(body, stdin)
        async with aclosing(follower.events()) as events:
            async for item in events:
                await capturing.take(item)
        return await capturing.result(follower.command_id, merged=follower.merged)

    async def stream(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        uid: int | None = None,
        gid: int | None = None,
        stdin: Source | Literal[True] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Started, then the output piece by piece as bytes, and an Exit as the last item, always.

        `stdin` True leaves the input open for `write_stdin` and `close_stdin`.
        """
        body = request_body(command, cwd=cwd, env=env, timeout=timeout, uid=uid, gid=gid)
        follower = self._follower(body, stdin)
        async with aclosing(follower.events()) as events:
            async for item in events:
                yield item

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> str:
        """Start in the background; returns the id for `status`, `logs`, `wait` and `interrupt`."""
        body = request_body(command, cwd=cwd, env=env, timeout=timeout, uid=uid, gid=gid)
        follower = running.Follower(self._channel, "/command", {**body, "background": True})
        async with aclosing(follower.events()) as events:
            async for item in events:
                if isinstance(item, Exit) and item.error:
                    raise InvalidRequest(
                        f"the command could not be started: {item.error}", code=Code.INVALID_PARAMETER
                    )
        return follower.command_id

    async def write_stdin(self, command_id: str, data: Source) -> None:
        """Write to a command that was started with stdin; returns when the command took it."""
        await feed(self._channel, command_id, data, close=False)

    async def close_stdin(self, command_id: str) -> None:
        """Let the command see the end of its input."""
        await self._channel.request("DELETE", f"/command/{command_id}/stdin")

    async def status(self, command_id: str) -> CommandStatus:
        """Whether it runs, and how it ended; known for foreground and background commands."""
        return await running.read_status(self._channel, command_id)

    async def logs(self, command_id: str, cursor: int = 0) -> Logs:
        """The output, both streams in one, from byte `cursor` on; continue with the cursor it returns."""
        return await running.read_logs(self._channel, command_id, cursor)

    async def wait(self, command_id: str, timeout: float | None = None) -> CommandStatus:
        """Wait until it ended. TimedOut after `timeout` seconds; the command itself goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_POLL
        while (status := await self.status(command_id)).running:
            if deadline is not None and time.monotonic() + pause > deadline:
                raise TimedOut(
                    f"command {command_id} still runs after {timeout:g} s",
                    hint="it was not stopped; wait again, or interrupt it",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)
        return status

    async def interrupt(self, command_id: str) -> None:
        """Ask the command and all its children to end, and make them after a grace period."""
        await interrupt(self._channel, command_id)

    def _follower(self, body: dict[str, Any], stdin: Source | Literal[True] | None) -> running.Follower:
        if stdin is None:
            return running.Follower(self._channel, "/command", body)
        source = None if stdin is True else stdin
        return running.Follower(self._channel, "/command", {**body, "stdin": True}, stdin=source)


def request_body(
    command: Command,
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout: float | None,
    uid: int | None,
    gid: int | None,
) -> dict[str, Any]:
    """The body of POST /command; what was not given is left out."""
    if timeout is not None and timeout <= 0:
        raise InvalidRequest(
            f"timeout: {timeout!r} is not above zero",
            code=Code.INVALID_PARAMETER,
            hint="leave it out to let the command run as long as it likes",
        )
    fields = {
        "command": command if isinstance(command, str) else None,
        "argv": None if isinstance(command, str) else [str(word) for word in command],
        "cwd": cwd,
        "envs": dict(env) if env else None,
        "timeout": None if timeout is None else max(1, round(timeout * 1000)),
        "uid": uid,
        "gid": gid,
    }
    return {name: value for name, value in fields.items() if value is not None}
