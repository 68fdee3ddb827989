# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a frozen machine under KVM depends on of the host's processor."""

from __future__ import annotations

from pathlib import Path


def features() -> str:
    """Model and features, in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("model name", "flags")
    found = {line.partition("\t")[0]: line for line in reversed(lines) if line.startswith(wanted)}
    return " ".join(found.get(name, "") for name in wanted)
