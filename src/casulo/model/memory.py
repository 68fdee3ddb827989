# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whether a sandbox's memory may be written down: what a create request says of it by extensions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from casulo.model.errors import Code, InvalidRequest, Unsupported

SNAPSHOT_MEMORY = "casulo.snapshot.memory"
SNAPSHOT_MEMORY_FEATURE = "snapshot.memory"
PAUSE = "casulo.pause"
PAUSE_TO_DISK_FEATURE = "pause.disk"
EXTENSIONS = (SNAPSHOT_MEMORY, PAUSE)


@dataclass(frozen=True)
class _Wish:
    """An extension whose second word asks for it; `otherwise` is what happens without."""

    extension: str
    words: tuple[str, str]
    feature: str
    cannot: str
    otherwise: str


_WISHES = (
    _Wish(
        SNAPSHOT_MEMORY,
        ("false", "true"),
        SNAPSHOT_MEMORY_FEATURE,
        "snapshots with memory are not available",
        "snapshots then hold the sandbox's files",
    ),
    _Wish(
        PAUSE,
        ("memory", "disk"),
        PAUSE_TO_DISK_FEATURE,
        "no sandbox can be paused to disk",
        "a paused sandbox then keeps its memory",
    ),
)


def with_memory(extensions: Mapping[str, str]) -> bool:
    """Whether snapshots of the sandbox hold its processes too."""
    return extensions.get(SNAPSHOT_MEMORY) == "true"


def pauses_to_disk(extensions: Mapping[str, str]) -> bool:
    """Whether a pause writes the sandbox's memory down and gives it back."""
    return extensions.get(PAUSE) == "disk"


def check(
    extensions: Mapping[str, str], volumes: bool, features: Collection[str], missing: Mapping[str, str]
) -> None:
    """Refuse other words, and wishes that a runtime with these features cannot fulfil.

    Volumes are mounted by the host, which no written memory can take along.
    """
    for wish in _WISHES:
        text = extensions.get(wish.extension, wish.words[0])
        if text not in wish.words:
            raise InvalidRequest(
                f"extension {wish.extension}: {text!r} is not known",
                code=Code.INVALID_PARAMETER,
                hint="known: " + ", ".join(wish.words),
            )
        if text == wish.words[0]:
            continue
        if wish.feature not in features:
            raise Unsupported(
                f"extension {wish.extension}: {wish.cannot} here: "
                f"{missing.get(wish.feature, 'its runtime keeps files only')}",
                code=Code.NOT_SUPPORTED,
                hint=f"leave the extension out: {wish.otherwise}",
            )
        if volumes:
            raise Unsupported(
                f"extension {wish.extension}: the memory of a sandbox with volumes cannot be kept",
                code=Code.NOT_SUPPORTED,
                hint="leave out the volumes or the extension",
            )
