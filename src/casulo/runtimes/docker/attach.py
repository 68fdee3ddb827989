# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Booting a container's daemon through its standard streams, which only this server is attached to.

The boot document goes in and one answer comes out, so that no secret is in the container's
configuration, and nothing is asked repeatedly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from casulo.model.errors import Code, RuntimeFailure, Unavailable
from casulo.runtimes import bootchannel
from casulo.runtimes.bootchannel import BootDocument, Ready
from casulo.runtimes.docker import leftovers
from casulo.runtimes.docker.engine import Engine, explained

_STDOUT = 1
_LONGEST_ANSWER = 64 << 10
_PORT_TAKEN = ("port is already allocated", "address already in use")
_NO_PORTS = "all ports are allocated"
_TRIES = 3
_RETRY_AFTER_SECONDS = 5.0


async def boot(
    engine: Engine,
    container: DockerContainer,
    document: BootDocument,
    timeout: float,
    started: Callable[[str], Awaitable[None]],
) -> Ready:
    """Start the container and return when its daemon is ready. Another program may take the port that the
    engine chose to publish; then it chooses again. Unavailable when it finds none that is free.

    `started` is called when the daemon waits for its document, and nothing of the user runs yet.
    """
    for left in reversed(range(_TRIES)):
        try:
            async with asyncio.timeout(timeout) as timer:
                return await _once(engine, container, document, started)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise bootchannel.too_slow(timeout) from error
        except RuntimeFailure as error:
            taken = any(words in error.message for words in _PORT_TAKEN)
            if _NO_PORTS in error.message or (taken and not left):
                raise _no_ports(error) from error
            if not taken:
                raise
    raise AssertionError("unreachable")


def _no_ports(error: RuntimeFailure) -> Unavailable:
    return Unavailable(
        f"no port of the engine's machine is free to be published: {error.message}",
        code=Code.CAPACITY_EXHAUSTED,
        hint='delete sandboxes, or set [docker] reach = "direct" where this machine reaches containers',
        retry_after=_RETRY_AFTER_SECONDS,
    )


async def _once(
    engine: Engine,
    container: DockerContainer,
    document: BootDocument,
    started: Callable[[str], Awaitable[None]],
) -> Ready:
    with explained("start the container", Code.SANDBOX_START_FAILED):
        async with container.attach(stdin=True, stdout=True) as stream:
            async with leftovers.ended_on_failure(container.id):
                await container.start()
            await started(container.id)
            await stream.write_in(bootchannel.stream_message(document))
            answer = await _line(stream)
    if not answer:
        raise bootchannel.died(await _how_it_ended(engine, container))
    return bootchannel.understand(answer)


async def _line(stream: Stream) -> bytes:
    """The first line on standard output; empty when there is none."""
    line = b""
    while len(line) < _LONGEST_ANSWER:
        message = await stream.read_out()
        if message is None:
            return b""
        if message.stream == _STDOUT:
            line += message.data
        if b"\n" in line:
            return line.partition(b"\n")[0]
    return b""


async def _how_it_ended(engine: Engine, container: DockerContainer) -> str:
    found: dict[str, Any] = (await engine.show(container.id) or {}).get("State", {})
    if found.get("OOMKilled"):
        return "the memory limit leaves it no room"
    said = f": {found['Error']}" if found.get("Error") else ""
    return f"it ended before it was ready, with status {found.get('ExitCode')}{said}"
