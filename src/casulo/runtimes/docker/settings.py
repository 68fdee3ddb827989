# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Settings of the Docker runtime, the `[docker]` table of the configuration file."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from casulo.model.quantities import whole_bytes

USUAL_SOCKET = "unix:///var/run/docker.sock"
_SCHEMES = ("unix://", "tcp://", "https://", "http://")


class DockerSettings(BaseModel):
    """Which engine runs the containers, and how they are reached. Every default is the safe one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = ""
    """Address of the engine, as in DOCKER_HOST; empty is the usual socket."""

    tls_dir: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem for an engine on another machine."""

    docker_runtime: str = ""
    """OCI runtime, as the engine calls it (runsc, kata); empty is the engine's default."""

    selectable_runtimes: tuple[str, ...] = ()
    """Runtimes that a request may name in its extension `casulo.docker_runtime`."""

    reach: Literal["auto", "direct", "published"] = "auto"
    """How the server gets to a sandbox: by the container's own address, or by a published port. `auto`
    takes the first where engine and server share a network."""

    publish_address: str = "127.0.0.1"
    """The engine's address at which ports are published."""

    connect_address: str = ""
    """Where this server finds published ports; empty is the publish address, or the engine's own host."""

    network: str = ""
    """A network of the engine to use as it is; empty lets the server make one, closed between sandboxes."""

    subnet: IPv4Network | None = None
    """Addresses of the network that the server makes; None lets the engine choose."""

    cable_network: IPv4Network = IPv4Network("10.211.0.0/16")
    """Addresses of sandboxes that this server connects by itself: those of an engine on this machine."""

    outbound: bool = True
    """Whether sandboxes may reach public addresses, where this server can filter the engine's packets."""

    timeout_seconds: float = Field(default=60, gt=0)
    """How long one call of the engine may take; pulls and waits have limits of their own."""

    log_cap: str = "10Mi"
    """Bytes of the entrypoint's output that the engine keeps."""

    snapshot_max: str = "16Gi"
    """Bytes of a sandbox's own files, holes included, in a snapshot: the engine writes them all."""

    @field_validator("host")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and not value.startswith(_SCHEMES):
            raise ValueError(f"{value!r} does not start with one of {', '.join(_SCHEMES)}")
        return value

    @field_validator("log_cap", "snapshot_max")
    @classmethod
    def _is_a_size(cls, value: str, about: ValidationInfo) -> str:
        whole_bytes(str(about.field_name), value)
        return value

    @property
    def url(self) -> str:
        """The engine's address in full."""
        return self.host or USUAL_SOCKET

    @property
    def is_socket(self) -> bool:
        """Whether the engine is reached through a socket of this machine."""
        return self.url.startswith("unix://")

    @property
    def log_cap_bytes(self) -> int:
        """`log_cap` in bytes."""
        return whole_bytes("log_cap", self.log_cap)

    @property
    def snapshot_bytes(self) -> int:
        """`snapshot_max` in bytes."""
        return whole_bytes("snapshot_max", self.snapshot_max)
