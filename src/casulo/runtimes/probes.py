# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Asking a sandbox, through its daemon, whether what runs in it is ready. Blocking."""

from __future__ import annotations

import http.client
import json

from casulo.model.sandbox import EXECD_PORT, Handle
from casulo.model.template import Probe

_HTTP_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_FAULT = "Execd-Proxy-Fault"


def holds(handle: Handle, probe: Probe, seconds: float) -> bool:
    """Whether the probe succeeds; a command may take `seconds`."""
    try:
        if probe.kind == "cmd":
            return _runs(handle, probe.what, seconds)
        if probe.kind == "tcp":
            return _is_open(handle, probe.port)
        return _answers(handle, probe)
    except (OSError, http.client.HTTPException):
        return False


def _runs(handle: Handle, command: str, seconds: float) -> bool:
    body = {"command": command, "timeout": max(1, int(seconds * 1000))}
    connection = http.client.HTTPConnection(handle.host, handle.port, timeout=seconds + _HTTP_SECONDS)
    try:
        connection.request("POST", "/command", json.dumps(body), _headers(handle, "application/json"))
        answer = connection.getresponse()
        if answer.status != 200:
            return False
        return any(_is_success(line) for line in iter(lambda: answer.readline(_MOST_BYTES), b""))
    finally:
        connection.close()


def _is_success(line: bytes) -> bool:
    try:
        event = json.loads(line)
    except ValueError:  # the empty lines between events
        return False
    return isinstance(event, dict) and event.get("type") == "execution_complete"


def _is_open(handle: Handle, port: int) -> bool:
    """Whether somebody listens; one that waits for more than a request, or speaks no HTTP, does."""
    if port == EXECD_PORT:
        return True  # it is why there is a handle
    try:
        answer = _get(handle, port, "/", 1.0)
    except TimeoutError:
        return True
    return answer.getheader(_FAULT) != "connect"


def _answers(handle: Handle, probe: Probe) -> bool:
    return _get(handle, probe.port, probe.what, _HTTP_SECONDS).status < 400


def _get(handle: Handle, port: int, path: str, seconds: float) -> http.client.HTTPResponse:
    """The head of an answer."""
    connection = http.client.HTTPConnection(handle.host, handle.port, timeout=seconds)
    try:
        place = path if port == EXECD_PORT else f"/proxy/{port}{path}"
        connection.request("GET", place, headers=_headers(handle))
        return connection.getresponse()
    finally:
        connection.close()


def _headers(handle: Handle, kind: str | None = None) -> dict[str, str]:
    found = {"X-EXECD-ACCESS-TOKEN": handle.token}
    return found if kind is None else {**found, "Content-Type": kind}
