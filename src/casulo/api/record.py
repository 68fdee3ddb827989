# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is kept of each answered request: a count of it, and a line in the audit log if it wanted a change."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from starlette.types import Scope

from casulo.api.audit import AuditLog
from casulo.api.auth import caller_of
from casulo.api.measures import Measures

_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_METHODS = _CHANGES | {"GET", "HEAD", "OPTIONS"}
_REFUSED = frozenset({401, 403})
_NO_CHANGE = "/metrics/events"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Answered:
    """How a request ended: `made` is the Location that it was told. Status 0: the caller left first."""

    request_id: str
    status: int
    made: str


class Record:
    """Told by the edge about every answer, before its head is sent: who sees an answer finds its record."""

    def __init__(self, measures: Measures, log: AuditLog | None) -> None:
        self._measures = measures
        self._log = log

    def close(self) -> None:
        """No more answers."""
        if self._log:
            self._log.close()

    def answered(self, scope: Scope, answered: Answered, *, proxied: bool) -> None:
        """A request is being answered. What goes through the proxy changes the sandbox, not the server."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._measures.answered(method, answered.status)
        ours = not proxied or "audit" in scope.get("state", {})
        change = method in _CHANGES and ours and not scope["path"].endswith(_NO_CHANGE)
        if self._log and (change or answered.status in _REFUSED):
            self._audit(self._log, scope, answered)

    def _audit(self, log: AuditLog, scope: Scope, answered: Answered) -> None:
        caller, client = caller_of(scope), scope.get("client")
        entry = {
            "request_id": answered.request_id,
            "caller": caller.name,
            "owner": caller.owner,
            "from": client[0] if client else "",
            "method": scope["method"],
            "path": scope["path"],
            "status": answered.status,
            **scope.get("state", {}).get("audit", {}),
        }
        try:
            log.write({**entry, "made": answered.made} if answered.made else entry)
        except OSError as error:  # the change is made already; a full disk must not hide that
            _log.error("audit.write_failed", request_id=answered.request_id, error=str(error))
