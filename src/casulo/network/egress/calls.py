# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Calls to the egress process over its unix socket. Blocking; every call has a limit."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from casulo.model.errors import Code, InvalidRequest, NotFound, RuntimeFailure, Unavailable

_SECONDS = 10.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("egress", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def call(path: Path, method: str, target: str, body: Any = None, *, seconds: float = _SECONDS) -> Any:
    """The answer's JSON, None for an empty one. Unavailable when the process does not answer."""
    connection = _Connection(path, seconds)
    try:
        return _exchange(connection, method, target, body)
    except (OSError, http.client.HTTPException) as error:
        raise _silent(error) from error
    finally:
        connection.close()


class Line:
    """A connection that is kept for the next call. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self._connection = _Connection(path, _SECONDS)

    def call(self, method: str, target: str, body: Any = None) -> Any:
        """As the function `call`. A connection that a process before had is made anew once."""
        was_open = self._connection.sock is not None
        try:
            return _exchange(self._connection, method, target, body)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if was_open:
                return self.call(method, target, body)
            raise _silent(error) from error


def _exchange(connection: _Connection, method: str, target: str, body: Any) -> Any:
    connection.request(method, target, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise _failure(answer.status, content.decode(errors="replace").strip())
    return json.loads(content) if content else None


def _silent(error: Exception) -> Unavailable:
    return Unavailable(
        f"the egress process does not answer: {error}",
        code=Code.NETWORK_POLICY_FAILED,
        hint="it is started again by itself; until then only what was open stays open",
    )


def _failure(status: int, text: str) -> Exception:
    if status == 404:
        return NotFound(text, code=Code.SANDBOX_NOT_FOUND)
    if status == 400:
        return InvalidRequest(f"this cannot be enforced: {text}", code=Code.NETWORK_POLICY_INVALID)
    return RuntimeFailure(
        f"this could not be enforced, and what held before stays: {text}",
        code=Code.NETWORK_POLICY_FAILED,
    )
