# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What pruning removes and what it leaves, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Found:
    """One thing that was looked at: a `template` that somebody ordered, the `machine` that a runtime
    froze of an image by itself, or a `disk`, `kernel` or other file that machines are made from."""

    kind: str
    id: str
    reason: str
    name: str = ""
    bytes: int = 0
    used_by: Sequence[str] = ()


@dataclass(frozen=True)
class Pruned:
    """`removed` is gone, or with a dry run would be; `kept` was left on purpose."""

    removed: Sequence[Found] = field(default=())
    kept: Sequence[Found] = field(default=())

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned((*self.removed, *other.removed), (*self.kept, *other.kept))
