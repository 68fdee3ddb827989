# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The parked members of all pools: who waits, for what, since when. No I/O, so a test can read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from casulo.model.sandbox import Spec


@dataclass(frozen=True)
class Member:
    """One parked sandbox. Its id is the one that its user will know it by."""

    id: str
    line: str
    """Which pool it was started for."""
    runtime: str
    shape: Spec
    entrypoint: tuple[str, ...]
    since: float

    def fits(self, runtime: str, shape: Spec, spec: Spec) -> bool:
        """Whether it can become a sandbox of `spec`.

        One that was parked with an entrypoint does not know the one of its image any more.
        """
        same = (self.runtime, self.shape) == (runtime, shape)
        return same and bool(spec.entrypoint or not self.entrypoint)


class Members:
    """Each member is here exactly as long as nobody has it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Member] = {}

    def add(self, member: Member) -> None:
        """It is ready."""
        self._waiting[member.id] = member

    def remove(self, member_id: str) -> Member | None:
        """It is not, any more."""
        return self._waiting.pop(member_id, None)

    def of(self, line: str) -> list[Member]:
        """Those of one pool, oldest first."""
        return [member for member in self._waiting.values() if member.line == line]

    def all(self) -> list[Member]:
        """Everyone, oldest first."""
        return list(self._waiting.values())

    def take(
        self, runtime: str, shape: Spec, spec: Spec, line: str | None, ready: Callable[[Member], bool]
    ) -> tuple[Member | None, list[Member]]:
        """The oldest fitting member that is `ready`, and the ones found not to be; all are taken out.

        `line` prefers members of one pool; when it has none, no other's are taken.
        """
        spoiled: list[Member] = []
        for member in self._candidates(line):
            if member.fits(runtime, shape, spec):
                del self._waiting[member.id]
                if ready(member):
                    return member, spoiled
                spoiled.append(member)
        return None, spoiled

    def _candidates(self, line: str | None) -> Iterable[Member]:
        return self.all() if line is None else self.of(line)
