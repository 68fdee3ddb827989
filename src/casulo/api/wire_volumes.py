# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of volumes, and what it means to the domain.

Members that are not known are refused: one that is spelled wrong could make a mount writable. Which
values are right is the model's business; here is only the form.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.volume import Claim, HostPath, Volume

MAX_VOLUMES = 64


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostVolume(_Strict):
    """A directory or file of the host, below what `[storage] allowed_host_paths` allows."""

    path: str = Field(description="Absolute. Missing directories are created.")


class NamedVolume(_Strict):
    """A volume that the runtime keeps under a name."""

    claimName: str
    createIfNotExists: bool | None = Field(default=None, description="True when absent.")
    deleteOnSandboxTermination: bool | None = Field(
        default=None,
        description="Delete it with its last sandbox, if it was made for one and all who used it said so.",
    )
    storageClass: str | None = Field(default=None, description="Refused where there are no classes.")
    storage: str | None = Field(default=None, description="Refused where a volume's size cannot be limited.")
    accessModes: list[str] | None = None


class VolumeSpec(_Strict):
    """One mount. Exactly one of `host` and `pvc` says what is mounted."""

    name: str
    mountPath: str
    readOnly: bool | None = Field(default=None, description="False when absent.")
    subPath: str | None = Field(
        default=None, description="Mount this part of the volume only; made when missing."
    )
    host: HostVolume | None = None
    pvc: NamedVolume | None = None
    ossfs: dict[str, Any] | None = Field(default=None, repr=False, description="Refused by this server.")


def volumes_of(specs: list[VolumeSpec] | None) -> tuple[Volume, ...]:
    """The domain's form. InvalidRequest unless each has one backend; Unsupported for object storage."""
    return tuple(_volume(spec) for spec in specs or ())


def _volume(spec: VolumeSpec) -> Volume:
    return Volume(
        name=spec.name,
        mount_path=spec.mountPath,
        source=_source(spec),
        read_only=bool(spec.readOnly),
        sub_path=spec.subPath or "",
    )


def _source(spec: VolumeSpec) -> HostPath | Claim:
    given = [name for name in ("host", "pvc", "ossfs") if getattr(spec, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"volume {spec.name!r}: needs exactly one of host, pvc and ossfs, and has {len(given)}",
            code=Code.VOLUME_INVALID_BACKEND,
            hint='for example "pvc": {"claimName": "data"}',
        )
    if spec.host is not None:
        return HostPath(spec.host.path)
    if spec.pvc is not None:
        return _claim(spec.pvc)
    raise Unsupported(
        f"volume {spec.name!r}: no runtime of this server mounts ossfs",
        code=Code.VOLUME_UNSUPPORTED,
        hint="mount the bucket on the host below an allowed path, and use it as a host volume",
    )


def _claim(named: NamedVolume) -> Claim:
    return Claim(
        claim_name=named.claimName,
        create_if_missing=named.createIfNotExists is not False,
        delete_with_sandbox=bool(named.deleteOnSandboxTermination),
        storage_class=named.storageClass or "",
        size=named.storage or "",
        access_modes=tuple(named.accessModes or ()),
    )
