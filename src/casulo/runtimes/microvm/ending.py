# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The end of a machine: asked for, or noticed."""

from __future__ import annotations

import structlog

from casulo.model.sandbox import Handle
from casulo.runtimes import endings
from casulo.runtimes.local import watch
from casulo.runtimes.microvm.capped import Capped
from casulo.runtimes.microvm.folder import Folder
from casulo.runtimes.microvm.vmm import Process

_LAST_LINES = 20
_LOG_CAP = 1 << 20
log = structlog.get_logger(__name__)


def ask(handle: Handle, process: Process, grace_seconds: float) -> None:
    """Let the entrypoint end by itself for at most `grace_seconds`; the caller kills the rest."""
    try:
        endings.ask(handle, grace_seconds)
    except OSError as error:
        log.info("microvm.not_asked", host=handle.host, error=str(error))
        return
    watch.await_end(process.pid, process.started, grace_seconds + endings.ASK_TIMEOUT_SECONDS)


def tell_last_words(folder: Folder) -> None:
    """Add to the sandbox's log what the machine's console and its monitor said last."""
    said = []
    for title, path in (("monitor", folder.monitor_log), ("console", folder.console_log)):
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            said += [f"[{title}] {line}" for line in lines]
    if not folder.path.exists():
        return
    target = Capped(folder.entrypoint_log, _LOG_CAP)
    try:
        target.append("\n".join(["[the virtual machine ended by itself]", *said, ""]).encode())
    finally:
        target.close()
