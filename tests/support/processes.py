# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Processes of the host, as tests look for them."""

from __future__ import annotations

from pathlib import Path


def lives(pid: int | str) -> bool:
    """Whether it is more than what its parent has not asked for yet, which holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
