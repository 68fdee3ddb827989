# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Settings of the local runtime, the `[local]` table of the configuration file."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from casulo.model.quantities import whole_bytes


class LocalSettings(BaseModel):
    """How containers are made on this machine. Every default is the safe one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    oci_runtime: Literal["auto", "crun", "runc"] = "auto"
    """`auto` takes crun where it works, since it starts a container about four times faster."""

    isolation: Literal["container", "gvisor"] = "container"
    """What a sandbox gets that does not ask for an isolation."""

    gvisor_platform: Literal["auto", "systrap", "ptrace", "kvm"] = "auto"
    """How gVisor runs code; `auto` takes the first that works of systrap and ptrace."""

    userns: Literal["auto", "on", "off"] = "auto"
    """Map the sandbox's root to an unprivileged host uid; `auto` where the kernel can."""

    slots: int = Field(default=8, ge=0, le=256)
    """Network namespaces prepared ahead of the next creates."""

    network: IPv4Network = IPv4Network("10.213.0.0/16")
    """Each sandbox takes a /30 of this network; it must not be routed elsewhere on this host."""

    outbound: bool = True
    """Whether sandboxes may reach public addresses. Private ones are closed either way."""

    log_cap: str = "10Mi"
    """Bytes of the entrypoint's output that are kept; the oldest half goes first."""

    @field_validator("network")
    @classmethod
    def _room_for_sandboxes(cls, value: IPv4Network) -> IPv4Network:
        if value.prefixlen > 28:
            raise ValueError("must be a /28 or larger, since each sandbox takes a /30 of it")
        return value

    @field_validator("log_cap")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        whole_bytes("log_cap", value)
        return value

    @property
    def log_cap_bytes(self) -> int:
        """`log_cap` in bytes."""
        return whole_bytes("log_cap", self.log_cap)
