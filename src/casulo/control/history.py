# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The last turns in each sandbox's life, to find out what went wrong. A restart forgets them."""

from __future__ import annotations

from collections import deque

from casulo.control.events import Event, Events, Kind

_TURNS = 50


class History:
    """Of every sandbox that there is, as far as this process has seen it."""

    def __init__(self, events: Events) -> None:
        self._turns: dict[str, deque[Event]] = {}
        events.listen(self._note)

    def of(self, sandbox_id: str) -> list[Event]:
        """Its turns, oldest first."""
        return list(self._turns.get(sandbox_id, ()))

    def _note(self, event: Event) -> None:
        if event.kind in (Kind.REMOVED, Kind.START_FAILED):
            self._turns.pop(event.sandbox.id, None)
        else:
            self._turns.setdefault(event.sandbox.id, deque(maxlen=_TURNS)).append(event)
