# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Setting the clock of a machine that stood still.

Its identity says what time it was when it was sent. On a busy machine the guest comes to read that
late; so it is told again, until telling takes no time to speak of.
"""

from __future__ import annotations

import time

import structlog

from casulo.model.errors import CasuloError
from casulo.runtimes.microvm.link import Link

_GOOD_SECONDS = 0.25
_TRIES = 3
_ASK_SECONDS = 30.0
log = structlog.get_logger(__name__)


async def keep_right(link: Link) -> None:
    """Set it; a machine that ends meanwhile needs no clock."""
    try:
        for _ in range(_TRIES):
            begun = time.monotonic()
            await link.ask("clock", _ASK_SECONDS, unix_nanos=time.time_ns())
            if time.monotonic() - begun < _GOOD_SECONDS:
                return
    except CasuloError as error:
        log.info("microvm.clock_not_set", error=str(error))
