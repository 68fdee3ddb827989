# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What makes a restored machine one particular sandbox, and nobody else."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

from casulo.network.slots import Slot

_SEED_BYTES = 64


def make(sandbox_id: str, token: str, hostname: str, slot: Slot, resolvers: list[str]) -> dict[str, Any]:
    """The order's member; its clock is right at this moment, so send it at once."""
    return {
        "sandbox_id": sandbox_id,
        "token": token,
        "hostname": hostname,
        "machine_id": sandbox_id.replace("-", "")[:32].ljust(32, "0"),
        "seed": base64.b64encode(os.urandom(_SEED_BYTES)).decode(),
        "address": str(slot.address),
        "gateway": str(slot.gateway),
        "mac": hardware_address(slot),
        "resolvers": resolvers,
        "unix_nanos": time.time_ns(),
    }


def hardware_address(slot: Slot) -> str:
    """A locally administered address that no other machine of this host has."""
    return "02:" + ":".join(f"{byte:02x}" for byte in b"\xc5" + slot.address.packed)
