# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The last words between a server and a sandbox's daemon: the request to end, and the record of the end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable

from casulo.model.sandbox import Exit, Handle

ASK_TIMEOUT_SECONDS = 2.0
_LONGEST_LINE = 4096


def ask(handle: Handle, grace_seconds: float) -> None:
    """Tell the daemon to end the entrypoint: TERM, and KILL after the grace. Blocks until it has agreed.

    Raises OSError when there is nobody to ask.
    """
    body = json.dumps({"grace_ms": int(grace_seconds * 1000)})
    request = (
        f"POST /v1/internal/stop HTTP/1.0\r\nHost: {handle.host}\r\nX-EXECD-ACCESS-TOKEN: {handle.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    # One request with one answer of a line or two, before each removal: an HTTP library takes longer.
    with socket.create_connection((handle.host, handle.port), ASK_TIMEOUT_SECONDS) as connection:
        connection.sendall(request.encode())
        head = _first_line(connection)
    if not head.startswith(b"HTTP/1.") or head[9:10] != b"2":
        raise ConnectionError(f"the daemon answered {head[:80]!r}")


def _first_line(connection: socket.socket) -> bytes:
    found = b""
    while b"\n" not in found and len(found) < _LONGEST_LINE:
        if not (more := connection.recv(_LONGEST_LINE)):
            break
        found += more
    return found.partition(b"\n")[0]


def last_exit(lines: Iterable[str]) -> Exit | None:
    """The entrypoint's end as the daemon recorded it; None when it recorded none.

    The lines were written by the sandbox's side: whatever does not look right is not believed.
    """
    found = None
    for line in lines:
        found = _parse(line) or found
    return found


def _parse(line: str) -> Exit | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("event") != "exit":
        return None
    code = event.get("code")
    return Exit(
        code=code if isinstance(code, int) else None,
        signal=str(event.get("signal") or ""),
        oom=event.get("oom") is True,
    )
