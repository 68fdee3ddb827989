# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The rate of this machine's time stamp counter.

In emulation a guest reads the host's counter, and there is no other clock that it could measure the
rate against. So it is told.
"""

from __future__ import annotations

import ctypes
import mmap
import time

_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3".replace(" ", ""))  # rdtsc; shl rdx,32; or rax,rdx; ret
_MEASURE_SECONDS = 0.25


def kilohertz() -> int:
    """Measured against the kernel's clock; blocks for a quarter of a second. x86-64 only."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_READ)
        place = ctypes.c_char.from_buffer(page)
        try:
            counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
            first_time, first = time.monotonic_ns(), int(counter())
            time.sleep(_MEASURE_SECONDS)
            last_time, last = time.monotonic_ns(), int(counter())
        finally:
            del place  # the page cannot be closed while something points into it
    return (last - first) * 1_000_000 // (last_time - first_time)
