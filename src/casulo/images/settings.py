# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Settings of the image store, the `[images]` table of the configuration file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from casulo.model.quantities import whole_bytes


class RegistrySettings(BaseModel):
    """`[images.registries."host:port"]`: how to speak to one registry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    username: str = ""
    password: str = Field(default="", repr=False)
    insecure: bool = False
    """Allow plain HTTP and certificates that cannot be checked. Never on by itself."""


class ImagesSettings(BaseModel):
    """Where images may come from and how much they may be. Every default is the safe one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path | None = None
    """Where images are kept; None is `images` below the data directory. Servers may share one."""

    registries: dict[str, RegistrySettings] = Field(default_factory=dict)
    auth_file: Path | None = None
    """Logins as `docker login` or `skopeo login` write them, for registries without their own above."""

    sources: tuple[Path, ...] = ()
    """Folders of this machine from which requests may name `oci:` and `docker-archive:` images."""

    docker_daemon: bool = False
    """Whether requests may name images of this machine's Docker daemon."""

    docker_host: str = ""
    """Its address; empty is the usual socket."""

    max_unpacked: str = "32Gi"
    """What one image may come to on disk."""

    pull_timeout_seconds: float = Field(default=1800, gt=0)
    stall_timeout_seconds: float = Field(default=60, gt=0)
    """How long a registry may send nothing."""

    parallel_layers: int = Field(default=2, ge=1, le=16)

    @field_validator("max_unpacked")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        whole_bytes("max_unpacked", value)
        return value

    def place(self, data: Path) -> Path:
        """Where the images of the server with this data directory are kept."""
        return (self.folder or data / "images").expanduser().absolute()

    @property
    def max_unpacked_bytes(self) -> int:
        """`max_unpacked` in bytes."""
        return whole_bytes("max_unpacked", self.max_unpacked)
