# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Firecracker's HTTP API: one call at a time, over the socket of one monitor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpcore

from casulo.model.errors import RuntimeFailure

_SECONDS = 120.0
_DONE = 204
_MOST_BYTES = 64 << 10
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


@dataclass(frozen=True)
class _Answer:
    status: int
    content: bytes


class Api:
    """The API at one socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def answers(self) -> bool:
        """Whether the monitor takes calls yet."""
        try:
            return await self._request("GET", "/", None) is not None
        except (OSError, *_BROKEN):
            return False

    async def call(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Have something done. RuntimeFailure with what the monitor said against it."""
        answer = await self._answered(method, path, body)
        if answer.status != _DONE:
            raise RuntimeFailure(f"the virtual machine monitor refused {path}: {_fault(answer)}")

    async def state(self) -> str:
        """`Not started`, `Running` or `Paused`."""
        answer = await self._answered("GET", "/", None)
        try:
            return str(json.loads(answer.content)["state"])
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeFailure("the virtual machine monitor does not say what it does") from error

    async def _answered(self, method: str, path: str, body: Mapping[str, Any] | None) -> _Answer:
        try:
            return await self._request(method, path, body)
        except (OSError, *_BROKEN) as error:
            reason = str(error) or type(error).__name__
            raise RuntimeFailure(f"the virtual machine monitor did not answer {path}: {reason}") from error

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> _Answer:
        content = None if body is None else json.dumps(body).encode()
        headers: dict[bytes | str, bytes | str] = {"Host": "localhost", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        limits = dict.fromkeys(("connect", "read", "write", "pool"), _SECONDS)
        with shortened(self._socket) as place:
            async with (
                httpcore.AsyncConnectionPool(uds=place) as pool,
                pool.stream(
                    method,
                    f"http://localhost{path}",
                    headers=headers,
                    content=content,
                    extensions={"timeout": limits},
                ) as answer,
            ):
                return _Answer(answer.status, await _body(answer))


async def _body(answer: httpcore.Response) -> bytes:
    """As much of it as may be."""
    content = b""
    async for chunk in answer.aiter_stream():
        content += chunk
        if len(content) > _MOST_BYTES:
            break
    return content


def _fault(answer: _Answer) -> str:
    try:
        return str(json.loads(answer.content)["fault_message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"


@contextmanager
def shortened(socket: Path) -> Iterator[str]:
    """Another name of a socket: it may have at most 107 characters. OSError when its folder is gone."""
    descriptor = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{socket.name}"
    finally:
        os.close(descriptor)
