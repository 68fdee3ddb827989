# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox mounts besides its root file system."""

from __future__ import annotations

from dataclasses import dataclass

from casulo.model.secret import Secret


@dataclass(frozen=True)
class HostPath:
    """A directory or file of the machine; only below what the configuration allows."""

    host_path: str


@dataclass(frozen=True)
class Claim:
    """A volume with a name of its own, kept by the runtime; the wire calls it `pvc`.

    `size` and `access_modes` are the caller's own words, kept for runtimes that understand them. `owner` is
    whose volumes the name is looked up among, as in `Sandbox.owner`; it never comes from a request.
    """

    claim_name: str
    create_if_missing: bool = True
    delete_with_sandbox: bool = False
    storage_class: str = ""
    size: str = ""
    access_modes: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class Bucket:
    """A bucket of an object store, mounted by `ossfs`. `options` are `name` or `name=value`."""

    bucket: str
    endpoint: str
    options: tuple[str, ...] = ()


class KeyedBucket(Bucket):
    """A bucket as the request brought it, with the key that opens it.

    The key is no member of the dataclass, so whatever writes a spec down, shows or compares it leaves it out.
    """

    def __init__(self, bucket: str, endpoint: str, options: tuple[str, ...], key: Secret) -> None:
        super().__init__(bucket, endpoint, options)
        object.__setattr__(self, "_key", key)

    @property
    def key(self) -> Secret:
        """`ID:SECRET`."""
        found = self.__dict__["_key"]
        assert isinstance(found, Secret)
        return found


@dataclass(frozen=True)
class Volume:
    """One mount. `sub_path` is relative to the source and never leaves it."""

    name: str
    mount_path: str
    source: HostPath | Claim | Bucket
    read_only: bool = False
    sub_path: str = ""
