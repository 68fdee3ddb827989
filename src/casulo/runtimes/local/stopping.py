# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Asking a sandbox to end, and reading afterwards how its entrypoint did."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import structlog

from casulo.model.sandbox import Exit, Handle
from casulo.runtimes.local import watch
from casulo.runtimes.local.cgroups import Group

ASK_TIMEOUT_SECONDS = 2.0
_MAX_EVENTS = 1 << 20
log = structlog.get_logger(__name__)


def ask(group: Group, handle: Handle, grace_seconds: float) -> None:
    """Let the entrypoint end by itself for at most `grace_seconds`; the caller kills the rest.

    A daemon that does not answer is no error: there is then nobody to ask.
    """
    if group.is_frozen():
        group.freeze(False)
    try:
        _post_stop(handle, grace_seconds)
    except (OSError, http.client.HTTPException) as error:
        log.info("stop.not_asked", host=handle.host, error=str(error))
        return
    pid, started = int(handle.data["pid"]), int(handle.data["started"])
    watch.await_end(pid, started, grace_seconds + ASK_TIMEOUT_SECONDS)


def _post_stop(handle: Handle, grace_seconds: float) -> None:
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


def read_exit(events: Path) -> Exit | None:
    """The entrypoint's end as the daemon recorded it; None when it recorded none.

    The file is written by the sandbox's side: whatever does not look right is not believed.
    """
    try:
        with events.open("rb") as file:
            lines = file.read(_MAX_EVENTS).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        found = _parse(line)
        if found is not None:
            return found
    return None


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
