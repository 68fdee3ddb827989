# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Deleting trees that hostile code has filled, however deep, closed or odd they are."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

_DEEPEST = 100
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AS_ROOT_INSIDE = ("unshare", "--user", "--map-root-user", "--")
"""Who owns a closed folder may still enter it with the rights of a user namespace's root."""


class _TooDeep(OSError):
    """Every level costs a descriptor and a stack frame, of which the server has few to spare."""


def remove_tree(path: Path) -> None:
    """Delete a directory and all below it, never following a link. FileNotFoundError when it is not there."""
    try:
        _remove(str(path), None, 0)
    except FileNotFoundError:
        if not os.path.lexists(path):
            raise
        _remove_with_program(path)
    except OSError:  # too deep, closed to its owner, or really not to be removed: then this says why
        _remove_with_program(path)


def _remove(name: str, parent: int | None, depth: int) -> None:
    if depth > _DEEPEST:
        raise _TooDeep(errno.ELOOP, "too many levels", name)
    folder = os.open(name, _ENTER, dir_fd=parent)
    try:
        with os.scandir(folder) as found:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
        for inner, is_folder in entries:
            if is_folder:
                _remove(inner, folder, depth + 1)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _remove_with_program(path: Path) -> None:
    """GNU rm goes to any depth."""
    wrapper = () if os.geteuid() == 0 else _AS_ROOT_INSIDE
    command = [*wrapper, "rm", "--recursive", "--force", "--one-file-system", "--", str(path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise OSError(errno.ENOTEMPTY, done.stderr.strip()[:500] or "rm was killed", str(path))
