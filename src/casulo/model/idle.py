# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whether a sandbox that nobody uses is paused, by an extension of its request. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from casulo.model.errors import Code, InvalidRequest, Unsupported

IDLE_PAUSE = "casulo.idle_pause_seconds"
_PAUSE_FEATURE = "pause"
_RANGE = range(1, 30 * 24 * 3600 + 1)


def idle_seconds(extensions: Mapping[str, str]) -> int | None:
    """After how many unused seconds the sandbox is paused; None for never."""
    text = extensions.get(IDLE_PAUSE)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) in _RANGE):
        raise InvalidRequest(
            f"extension {IDLE_PAUSE}: {text!r} is not a number of seconds from 1 to {_RANGE[-1]}",
            code=Code.INVALID_PARAMETER,
            hint="leave it out to have the sandbox run until it ends",
        )
    return int(text)


def check(extensions: Mapping[str, str], features: Collection[str], missing: Mapping[str, str]) -> None:
    """Refuse what is no number, and the wish itself where nothing can be paused."""
    if idle_seconds(extensions) is not None and _PAUSE_FEATURE not in features:
        raise Unsupported(
            f"extension {IDLE_PAUSE}: sandboxes cannot be paused here: "
            f"{missing.get(_PAUSE_FEATURE, 'their runtime has no way to')}",
            code=Code.NOT_SUPPORTED,
            hint="leave the extension out",
        )
