# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which kind of sandbox is asked for most lately."""

from __future__ import annotations

from collections import Counter

from casulo.model.sandbox import Spec

Kind = tuple[str, Spec]
"""Name of the runtime, and what of a spec is decided when its container starts."""

_REMEMBERED = 1000
_OFTEN = 3


class Demand:
    """Counts, and forgets half of what it counted whenever the answer changes."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._kinds: dict[str, Kind] = {}
        self._first: str | None = None

    def note(self, runtime: str, form: Spec) -> None:
        """Somebody asked for this."""
        key = repr((runtime, form))
        if key not in self._kinds and len(self._kinds) >= _REMEMBERED:
            self._kinds.clear()
            self._times.clear()
        self._kinds[key] = (runtime, form)
        self._times[key] += 1

    def changed(self) -> Kind | None:
        """The kind that is now asked for most, if it was not before and is asked for often enough."""
        if not self._times:
            return None
        key, times = self._times.most_common(1)[0]
        if key == self._first or times < _OFTEN:
            return None
        self._first = key
        for each in self._times:
            self._times[each] //= 2
        return self._kinds[key]
