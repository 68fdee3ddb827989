# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The `[egress]` table: what holds for all sandboxes, whatever their policies say."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from casulo.model.policy import Action, NetworkPolicy
from casulo.model.quantities import whole_bytes


class EgressSettings(BaseModel):
    """How policies are enforced. Every default is the safe one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: Literal["allow", "deny"] = "allow"
    """What a sandbox without a policy may reach of the public internet. `deny` puts every sandbox under
    a policy that denies everything unless it brings its own."""

    resolvers: tuple[str, ...] = ()
    """Name servers that are asked for allowed names, as address or address:port; the host's own if empty."""

    public: tuple[IPv4Network, ...] = ()
    """Special-purpose networks that count as public here, such as a site's own use of 100.64.0.0/10."""

    block_doh: bool = True
    """Deny the known resolvers over HTTPS where nothing but the default allows them."""

    doh: tuple[str, ...] = ()
    """Further names and addresses of resolvers over HTTPS."""

    log: Path | None = None
    """The audit log; `egress/audit.jsonl` in the data directory if not given."""

    log_max: str = "64Mi"
    log_keep: int = Field(default=5, ge=0, le=100)
    """How large the log gets before it is set aside, and how many old ones are kept."""

    max_connections: int = Field(default=1024, ge=1)
    connections_per_second: int = Field(default=200, ge=1)
    queries_per_second: int = Field(default=100, ge=1)
    max_addresses: int = Field(default=4096, ge=16)
    """Bounds of one sandbox: open connections, new ones, names asked for, and addresses learned."""

    @field_validator("resolvers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            host, _, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "53")
            ip_address(host.strip("[]"))
            if not port.isdigit():
                raise ValueError(f"{text!r} is no address with a port")
        return value

    @field_validator("log_max")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        whole_bytes("log_max", value)
        return value

    @property
    def default_policy(self) -> NetworkPolicy | None:
        """The policy of a sandbox that brings none."""
        return NetworkPolicy(Action.DENY) if self.default == "deny" else None
