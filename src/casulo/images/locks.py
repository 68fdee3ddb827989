# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""File locks between the processes that share an image store. The kernel drops them with their holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Wait for the lock on the file `path`, made if need be."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held_while_there(path: Path) -> Iterator[None]:
    """An exclusive lock whose file goes away with its last holder."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                try:
                    yield
                finally:
                    path.unlink()
                return
        finally:
            os.close(descriptor)


def is_free(directory: Path) -> bool:
    """Whether nobody holds the lock on this directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_if_free(path: Path) -> None:
    """Remove the lock file that a killed process left; whoever waits for it makes a fresh one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_still(path, descriptor):
            path.unlink()
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that we have locked is the one at `path`: its last holder may have removed it."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
