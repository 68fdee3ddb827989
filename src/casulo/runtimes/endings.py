# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The last words between a server and a sandbox's daemon: the request to end, and the record of the end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable

from casulo.model.sandbox import Exit, Handle

ASK_TIMEOUT_SECONDS = 2.0


def ask(handle: Handle, grace_seconds: float) -> None:
    """Tell the daemon to end the entrypoint: TERM, and KILL after the grace. Blocks until it has agreed.

    Raises OSError or HTTPException when there is nobody to ask.
    """
    connection = http.client.HTTPConnection(handle.host, handle.port, timeout=ASK_TIMEOUT_SECONDS)
    try:
        body = json.dumps({"grace_ms": int(grace_seconds * 1000)})
        headers = {"X-EXECD-ACCESS-TOKEN": handle.token, "Content-Type": "application/json"}
        connection.request("POST", "/v1/internal/stop", body, headers)
        status = connection.getresponse().status
        if status >= 300:
            raise http.client.HTTPException(f"the daemon answered {status}")
    finally:
        connection.close()


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
