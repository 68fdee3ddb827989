# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox mounts besides its root file system."""

from __future__ import annotations

from dataclasses import dataclass


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
class Volume:
    """One mount. `sub_path` is relative to the source and never leaves it."""

    name: str
    mount_path: str
    source: HostPath | Claim
    read_only: bool = False
    sub_path: str = ""
