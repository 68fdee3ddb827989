# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Shell sessions: commands that share variables and the working directory."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from casulo.client.channel import Channel
from casulo.client.records import parse
from casulo.client.results import Capture, Handler, Result
from casulo.client.running import Follower
from casulo.client.supply import interrupt


class AsyncSession:
    """One session. As a context manager it is deleted on leaving."""

    def __init__(self, channel: Channel, session_id: str) -> None:
        self._channel = channel
        self.id = session_id

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.delete()

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        on_stdout: Handler | None = None,
    ) -> Result:
        """Run in the session; stderr comes within stdout, as in a terminal."""
        fields: dict[str, Any] = {"command": command}
        if cwd is not None:
            fields["cwd"] = cwd
        if timeout is not None:
            fields["timeout"] = max(1, round(timeout * 1000))
        capturing = Capture(on_stdout, None, keep=True)
        follower = Follower(self._channel, f"/session/{self.id}/run", fields, replayable=False)
        async with aclosing(follower.events()) as events:
            async for item in events:
                await capturing.take(item)
        return await capturing.result(follower.command_id, merged=False)

    async def interrupt(self) -> None:
        """End what runs in the session; the session stays."""
        await interrupt(self._channel, self.id)

    async def delete(self) -> None:
        """End the session and what still runs in it."""
        await self._channel.request("DELETE", f"/session/{self.id}")


class AsyncSessions:
    """The sessions of one sandbox."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def create(self, cwd: str | None = None) -> AsyncSession:
        """A new session that begins in `cwd`."""
        answer = await self._channel.request("POST", "/session", content={"cwd": cwd} if cwd else {})
        return self.attach(parse(lambda data: str(data["session_id"]), answer.json()))

    def attach(self, session_id: str) -> AsyncSession:
        """A session that exists, by its id."""
        return AsyncSession(self._channel, session_id)
