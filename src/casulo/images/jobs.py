# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Worker processes seen from the event loop: started, listened to, shared, and ended in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from casulo.images.report import Progress
from casulo.model import errors
from casulo.model.errors import CasuloError, Code, RuntimeFailure, TimedOut

COMMAND = (sys.executable, "-P", "-m", "casulo.images.worker")
OnProgress = Callable[[Progress], None]


@dataclass
class _Flight:
    """One worker, and who waits for it."""

    task: asyncio.Task[str]
    waiting: int = 0
    listeners: list[OnProgress] = field(default_factory=list)


class Flights:
    """Jobs on their way. The same job is done once for all who want it; `clean` follows one that failed."""

    def __init__(self, clean: Callable[[], None]) -> None:
        self._clean = clean
        self._flights: dict[str, _Flight] = {}

    async def run(self, job: Mapping[str, object], timeout: float, progress: OnProgress | None) -> str:
        """The job's digest. Cancelling ends the worker unless others wait for it, too."""
        key = json.dumps(job, sort_keys=True)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(self._fly(key, job, timeout)))
        flight.waiting += 1
        if progress is not None:
            flight.listeners.append(progress)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if progress is not None:
                flight.listeners.remove(progress)
            if not flight.waiting and not flight.task.done():
                await self._end(key, flight)

    async def close(self) -> None:
        """End all of them."""
        for key, flight in list(self._flights.items()):
            await self._end(key, flight)

    async def _end(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]  # whoever comes from now on gets a fresh one
        flight.task.cancel()
        await asyncio.wait([flight.task])
        if not flight.task.cancelled():
            flight.task.exception()  # looked at, so that nobody is told that nobody looked

    async def _fly(self, key: str, job: Mapping[str, object], timeout: float) -> str:
        flight = self._flights[key]

        def tell(progress: Progress) -> None:
            for listener in list(flight.listeners):
                listener(progress)

        try:
            async with asyncio.timeout(timeout):
                return await self._work(job, tell)
        except TimeoutError as error:
            raise TimedOut(
                f"the image was not here after {timeout:g} s",
                code=Code.IMAGE_PULL_TIMEOUT,
                hint="finished layers are kept: try again, or raise [images] pull_timeout_seconds",
            ) from error
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _work(self, job: Mapping[str, object], tell: OnProgress) -> str:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            return await _listen(process, job, tell)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.to_thread(self._clean)
            raise


async def _listen(process: asyncio.subprocess.Process, job: Mapping[str, object], tell: OnProgress) -> str:
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(json.dumps(job).encode() + b"\n")
    result: dict[str, Any] = {}
    async for line in process.stdout:
        result = json.loads(line)
        if "progress" in result:
            tell(Progress(**result["progress"]))
    words = (await process.stderr.read()).decode(errors="replace").strip()
    await process.wait()
    if "done" in result:
        return str(result["done"])
    if "failed" in result:
        raise _error(result["failed"])
    raise RuntimeFailure(f"the image's worker process ended: {words[-2000:]}", code=Code.IMAGE_PULL_FAILED)


def _error(body: Mapping[str, str]) -> CasuloError:
    """The worker's error, of the same kind."""
    kind = getattr(errors, body["kind"], RuntimeFailure)
    if not (isinstance(kind, type) and issubclass(kind, CasuloError)):
        kind = RuntimeFailure
    return kind(body["message"], code=body["code"], hint=body["hint"])
