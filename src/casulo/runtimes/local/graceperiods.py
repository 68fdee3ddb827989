# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sparing gVisor's programs what makes them wait for the kernel: RCU grace periods, 8 to 15 ms each.

A start of runsc is five programs, three of them one after another. Each registers for membarrier(2) before
it does anything else, which waits for a grace period; and a process of several threads waits for one
whenever its table of open files has to grow. Together that was a third of a start. (Nothing is lost but
that call, which a sandbox's programs then find missing, as on a kernel built without it. The kernel's own
cure, rcu_expedited, would change the whole machine.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterator

from casulo import linux

_NUMBERS = {"x86_64": 324, "aarch64": 283}
"""Of membarrier(2)."""

_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000 | errno.ENOSYS, 0x7FFF0000

ROOMY = 511
"""A descriptor so high that a table which holds it need not grow: tables double from 64 entries, and a
process that is started inherits the size."""


def refuse_membarrier() -> None:
    """Let the calling thread, and what it starts from now on, do without. For a thread of its own."""
    number = _NUMBERS.get(platform.machine())
    if number is not None:
        linux.filter_calls(_filter(number))


def _filter(number: int) -> bytes:
    """Instructions of struct sock_filter: this one call is unknown, every other one is allowed.

    The architecture is not looked at: gVisor's programs make calls of their own only, and what a
    sandbox's programs call never reaches this kernel.
    """
    steps = [(_LOAD_NUMBER, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _ALLOW)])


@contextlib.contextmanager
def roomy_tables() -> Iterator[list[int]]:
    """Descriptors to be inherited by a program whose table of open files shall be large; it needs no more
    of them, and they lead nowhere."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        high = fcntl.fcntl(nothing, fcntl.F_DUPFD_CLOEXEC, ROOMY)
    except OSError:  # this server may not open as many files, and the start only takes longer
        yield []
        return
    finally:
        os.close(nothing)
    try:
        yield [high]
    finally:
        os.close(high)
