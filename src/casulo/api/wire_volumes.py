# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of volumes, and what it means to the domain.

Members that are not known are refused: one that is spelled wrong could make a mount writable. Which
values are right is the model's business; here is only the form.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from casulo.model.buckets import BY_HAND
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.secret import Secret
from casulo.model.volume import Bucket, Claim, HostPath, KeyedBucket, Volume

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


class BucketVolume(_Strict):
    """A bucket of an object store, where the server's host has the program `ossfs`."""

    bucket: str
    endpoint: str
    version: str = Field(default="1.0", description="Of ossfs. Only 1.0 is mounted.")
    options: list[str] | None = Field(default=None, description="`name` or `name=number`, of a short list.")
    accessKeyId: SecretStr
    accessKeySecret: SecretStr


class VolumeSpec(_Strict):
    """One mount. Exactly one of `host`, `pvc` and `ossfs` says what is mounted."""

    name: str
    mountPath: str
    readOnly: bool | None = Field(default=None, description="False when absent.")
    subPath: str | None = Field(
        default=None, description="Mount this part of the volume only; made when missing."
    )
    host: HostVolume | None = None
    pvc: NamedVolume | None = None
    ossfs: BucketVolume | None = None


def volumes_of(specs: list[VolumeSpec] | None) -> tuple[Volume, ...]:
    """The domain's form. InvalidRequest unless each has one backend; Unsupported for ossfs 2.0."""
    return tuple(_volume(spec) for spec in specs or ())


def _volume(spec: VolumeSpec) -> Volume:
    return Volume(
        name=spec.name,
        mount_path=spec.mountPath,
        source=_source(spec),
        read_only=bool(spec.readOnly),
        sub_path=spec.subPath or "",
    )


def _source(spec: VolumeSpec) -> HostPath | Claim | Bucket:
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
    assert spec.ossfs is not None
    return _bucket(spec.name, spec.ossfs)


def _bucket(name: str, asked: BucketVolume) -> Bucket:
    if asked.version != "1.0":
        raise Unsupported(
            f"volume {name!r}: no runtime of this server mounts ossfs {asked.version!r}",
            code=Code.VOLUME_UNSUPPORTED,
            hint=f'ask for version "1.0", or {BY_HAND}',
        )
    key = f"{asked.accessKeyId.get_secret_value()}:{asked.accessKeySecret.get_secret_value()}"
    return KeyedBucket(asked.bucket, asked.endpoint, tuple(asked.options or ()), Secret(key))


def _claim(named: NamedVolume) -> Claim:
    return Claim(
        claim_name=named.claimName,
        create_if_missing=named.createIfNotExists is not False,
        delete_with_sandbox=bool(named.deleteOnSandboxTermination),
        storage_class=named.storageClass or "",
        size=named.storage or "",
        access_modes=tuple(named.accessModes or ()),
    )
