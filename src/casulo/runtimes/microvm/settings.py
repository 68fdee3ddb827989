# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Settings of the microVM runtime, the `[microvm]` table of the configuration file."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from casulo.model.quantities import whole_bytes


class MicrovmSettings(BaseModel):
    """How virtual machines are made on this machine. Every default is the safe one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path | None = None
    """Kernels, disks and templates; None is `microvm` below the data directory. Servers may share one."""

    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """`auto` takes KVM where a probe boots; `tcg` emulates, which is slower and a weaker boundary."""

    monitor: Literal["qemu", "firecracker"] = "qemu"
    """`firecracker` needs KVM and version 1.12 or later; its jailer locks it up where there is one."""

    spare: int = Field(default=1, ge=0, le=16)
    """Machines restored ahead of the next creates, for each of the templates used last."""

    network: IPv4Network = IPv4Network("10.212.0.0/16")
    """Each machine takes a /30 of this network; it must not be routed elsewhere on this host."""

    outbound: bool = True
    """Whether sandboxes may reach public addresses. Private ones are closed either way."""

    default_disk: str = "2Gi"
    """What a sandbox may write when its request does not say."""

    log_cap: str = "1Mi"
    """Bytes of the entrypoint's output that are kept; the oldest half goes first."""

    template_timeout_seconds: float = Field(default=180, gt=0)
    """How long a machine may take to boot before it is frozen as a template."""

    @field_validator("network")
    @classmethod
    def _room_for_sandboxes(cls, value: IPv4Network) -> IPv4Network:
        if value.prefixlen > 28:
            raise ValueError("must be a /28 or larger, since each sandbox takes a /30 of it")
        return value

    @field_validator("log_cap", "default_disk")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        whole_bytes("size", value)
        return value

    @property
    def log_cap_bytes(self) -> int:
        """`log_cap` in bytes."""
        return whole_bytes("log_cap", self.log_cap)

    @property
    def default_disk_bytes(self) -> int:
        """`default_disk` in bytes."""
        return whole_bytes("default_disk", self.default_disk)

    def place(self, data: Path) -> Path:
        """Where kernels, disks and templates of the server with this data directory are."""
        return (self.folder or data / "microvm").expanduser().absolute()
