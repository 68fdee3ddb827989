# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Isolated sessions: shells with their own processes and their own view of the sandbox's files.

The sandbox must have been created with `extensions={"bootstrap.execd.isolation": "enable"}`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from casulo.client.channel import Channel
from casulo.client.files import AsyncFiles
from casulo.client.records import moment, parse
from casulo.client.results import Capture, Handler, Logs, Result
from casulo.client.running import Follower
from casulo.model.errors import Code, InvalidRequest, TimedOut, Unsupported

EXTENSION = {"bootstrap.execd.isolation": "enable"}
"""What to create a sandbox with that shall have isolated sessions."""

CURSOR_HEADER = "execd-isolated-tail-cursor"
_ROOT = "/v1/isolated"
_FIRST_POLL = 0.02
_SLOWEST_POLL = 0.5
_NOT_GIVEN: tuple[object, ...] = (None, [], {}, "")

Mode = Literal["rw", "overlay", "ro"]


@dataclass(frozen=True)
class Overlay:
    """A directory and what the session sees of it: itself (`rw`), itself without writing (`ro`), or a view
    whose changes stay in the session (`overlay`), on disk, or in memory with `persist` False."""

    path: str
    mode: Mode | None = None
    persist: bool | None = None


@dataclass(frozen=True)
class BindMount:
    """`source` of the sandbox, shown in the session at `dest`, or where it is."""

    source: str
    dest: str | None = None
    readonly: bool = False


@dataclass(frozen=True)
class IsolatedCapabilities:
    """What the sandbox can do; `message` says why not."""

    available: bool
    message: str = ""
    isolator: str = ""
    version: str = ""
    setpriv_available: bool = False
    userns_available: bool = False
    commit_supported: bool = False
    diff_supported: bool = False
    hardening: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(data: Any) -> IsolatedCapabilities:
        """From the daemon's answer."""
        known = {name: data[name] for name in IsolatedCapabilities.__dataclass_fields__ if name in data}
        return IsolatedCapabilities(**known)


@dataclass(frozen=True)
class IsolatedSessionInfo:
    """A session as the daemon describes it; `settings` are those it was created with, in wire form."""

    id: str
    status: str
    created_at: datetime
    last_run_at: datetime
    idle_remaining_seconds: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(data: Any) -> IsolatedSessionInfo:
        """From the daemon's answer."""
        own = ("session_id", "status", "created_at", "last_run_at", "idle_remaining_seconds")
        return IsolatedSessionInfo(
            id=str(data["session_id"]),
            status=str(data["status"]),
            created_at=moment(data["created_at"]),
            last_run_at=moment(data["last_run_at"]),
            idle_remaining_seconds=data.get("idle_remaining_seconds"),
            settings={name: value for name, value in data.items() if name not in own},
        )


@dataclass(frozen=True)
class IsolatedRun:
    """A background run. `error` tells what ended it, if it did not end by itself."""

    id: str
    running: bool
    exit_code: int | None = None
    error: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @staticmethod
    def read(data: Any) -> IsolatedRun:
        """From the daemon's answer."""
        return IsolatedRun(
            id=str(data["run_id"]),
            running=bool(data["running"]),
            exit_code=data.get("exit_code"),
            error=str(data.get("error") or ""),
            started_at=moment(data["started_at"]),
            finished_at=moment(data["finished_at"]) if data.get("finished_at") else None,
        )


@dataclass(frozen=True)
class IsolatedChange:
    """One difference between a session's overlay and the sandbox: added, modified or deleted."""

    path: str
    kind: str
    type: str
    size: int

    @staticmethod
    def read(data: Any) -> IsolatedChange:
        """From the daemon's answer."""
        return IsolatedChange(str(data["path"]), str(data["kind"]), str(data["type"]), int(data["size"]))


class SessionFiles(AsyncFiles):
    """The files as a session sees them, with the rights of its user."""

    def as_user(self, uid: int, gid: int) -> AsyncFiles:
        """Not here: the user of a session is chosen when it is created."""
        raise Unsupported(
            "files of an isolated session are reached with the rights of its user only",
            code=Code.NOT_SUPPORTED,
            hint="create the session with uid and gid",
        )


class AsyncIsolatedSession:
    """One session. As a context manager it is deleted on leaving."""

    def __init__(self, channel: Channel, session_id: str) -> None:
        self._channel = channel
        self._path = f"{_ROOT}/session/{session_id}"
        self.id = session_id
        self.files = SessionFiles(channel, self._path)

    async def __aenter__(self) -> AsyncIsolatedSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.delete()

    async def run(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_stdout: Handler | None = None,
    ) -> Result:
        """Run shell text to the end; variables, functions and directory stay for the next run.

        stderr comes within stdout. `env` is for this run only. After `timeout` seconds the run is ended, and
        the session goes on with the variables, functions and directory that it had by then.
        """
        capturing = Capture(on_stdout, None, keep=True)
        body = _run_body(code, env, timeout)
        follower = Follower(self._channel, f"{self._path}/run", body, replayable=False)
        async with aclosing(follower.events()) as events:
            async for item in events:
                await capturing.take(item)
        return await capturing.result("", merged=False)

    async def start(
        self, code: str, *, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> IsolatedRun:
        """Run in the background, from the session's state as it is now, and beside its other runs."""
        body = {**_run_body(code, env, timeout), "background": True}
        answer = await self._channel.request("POST", f"{self._path}/run", content=body)
        return parse(lambda data: IsolatedRun.read({**data, "running": True}), answer.json())

    async def status(self, run_id: str) -> IsolatedRun:
        """How a background run stands."""
        answer = await self._channel.request("GET", f"{self._path}/runs/{run_id}")
        return parse(IsolatedRun.read, answer.json())

    async def logs(self, run_id: str, cursor: int = 0) -> Logs:
        """Output of a background run from byte `cursor` on; continue with the cursor it returns."""
        query = [("cursor", str(cursor))] if cursor else []
        answer = await self._channel.request("GET", f"{self._path}/runs/{run_id}/logs", query=query)
        told = answer.headers.get(CURSOR_HEADER, "")
        return Logs(answer.body, int(told) if told.isdigit() else cursor + len(answer.body))

    async def wait(self, run_id: str, timeout: float | None = None) -> IsolatedRun:
        """Wait until a background run ended. TimedOut after `timeout` seconds; the run itself goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_POLL
        while (found := await self.status(run_id)).running:
            if deadline is not None and time.monotonic() + pause > deadline:
                raise TimedOut(f"run {run_id} still goes on after {timeout:g} s", hint="wait again")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)
        return found

    async def info(self) -> IsolatedSessionInfo:
        """The session's state and settings."""
        return parse(IsolatedSessionInfo.read, (await self._channel.request("GET", self._path)).json())

    async def diff(self) -> tuple[IsolatedChange, ...]:
        """What the session's overlays differ in from the sandbox."""
        return _changes((await self._channel.request("GET", f"{self._path}/diff")).json())

    async def commit(self) -> tuple[IsolatedChange, ...]:
        """Make these differences true in the sandbox; returns them. After a failure it can be repeated."""
        return _changes((await self._channel.request("POST", f"{self._path}/commit")).json())

    async def delete(self) -> None:
        """End everything in the session and drop what it did not commit."""
        await self._channel.request("DELETE", self._path)


class AsyncIsolated:
    """The isolated sessions of one sandbox."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def capabilities(self) -> IsolatedCapabilities:
        """What the sandbox can do; answered by every sandbox."""
        answer = await self._channel.request("GET", f"{_ROOT}/capabilities")
        return parse(IsolatedCapabilities.read, answer.json())

    async def create(
        self,
        workspace: str | None = None,
        *,
        mode: Mode | None = None,
        overlays: Sequence[Overlay] = (),
        profile: Literal["strict", "balanced"] | None = None,
        extra_writable: Sequence[str] = (),
        binds: Sequence[BindMount] = (),
        share_net: bool | None = None,
        env_passthrough: Mapping[str, Any] | None = None,
        uid: int | None = None,
        gid: int | None = None,
        uid_mode: Literal["setpriv", "userns"] | None = None,
        idle_timeout: int | None = None,
    ) -> AsyncIsolatedSession:
        """A new session that begins in `workspace`, or in the first of `overlays`.

        Everything else is read-only in it. With the profile `strict`, the default, the workspace is an
        overlay, temporary directories are the session's own and secrets are kept out of its environment.
        """
        whole = {
            "workspace": _given({"path": workspace, "mode": mode}) if workspace else None,
            "overlays": [_given(asdict(overlay)) for overlay in overlays],
            "profile": profile,
            "extra_writable": list(extra_writable),
            "binds": [_given(asdict(bind)) for bind in binds],
            "share_net": share_net,
            "env_passthrough": dict(env_passthrough) if env_passthrough else None,
            "uid": uid,
            "gid": gid,
            "uid_mode": uid_mode,
            "idle_timeout_seconds": idle_timeout,
        }
        answer = await self._channel.request("POST", f"{_ROOT}/session", content=_given(whole))
        return self.attach(parse(lambda data: str(data["session_id"]), answer.json()))

    def attach(self, session_id: str) -> AsyncIsolatedSession:
        """A session that exists, by its id."""
        return AsyncIsolatedSession(self._channel, session_id)

    async def list(self) -> tuple[IsolatedSessionInfo, ...]:
        """All sessions, oldest first, without their settings."""
        answer = await self._channel.request("GET", f"{_ROOT}/sessions")
        found = parse(lambda data: list(data["sessions"]), answer.json())
        return tuple(parse(IsolatedSessionInfo.read, item) for item in found)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in _NOT_GIVEN}


def _run_body(code: str, env: Mapping[str, str] | None, timeout: float | None) -> dict[str, Any]:
    if timeout is not None and timeout <= 0:
        raise InvalidRequest(f"timeout: {timeout!r} is not above zero", code=Code.INVALID_PARAMETER)
    return _given({"code": code, "envs": dict(env or {}), "timeout_seconds": timeout})


def _changes(data: Any) -> tuple[IsolatedChange, ...]:
    found = parse(lambda body: list(body["changes"]), data)
    return tuple(parse(IsolatedChange.read, item) for item in found)
