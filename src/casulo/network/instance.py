# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The name of one server on its machine, by which everything that it leaves in the kernel is told apart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def instance_of(data: Path) -> str:
    """Six hex digits that name the server with this data directory."""
    return hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:6]


def table_of(instance: str) -> str:
    """The server's own table of the packet filter."""
    return f"casulo_{instance}"
