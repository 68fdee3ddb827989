# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The plan of one container, as the engine's API wants it, and how everything is named. Pure."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casulo.model.sandbox import EXECD_PORT, Resources
from casulo.model.volume import Claim
from casulo.network.filter import ANY_SANDBOX

INSTANCE_LABEL, SANDBOX_LABEL, SNAPSHOT_LABEL = "casulo.instance", "casulo.sandbox", "casulo.snapshot"
CLAIMS_LABEL, DOOMED_LABEL, TEMPORARY_LABEL = "casulo.volumes", "casulo.volumes_to_delete", "casulo.temporary"
"""On a container: the named volumes that it uses, and those that were asked to go with it, separated by
commas. On a volume: that it was made for a sandbox, to go with it."""

RESERVED_NAMES = "casulo-"
"""How the names of a server's own volumes begin: a sandbox with one of them could change the daemon."""

DAEMON_FOLDER = "/opt/opensandbox/daemon"
DAEMON = (f"{DAEMON_FOLDER}/execd", "--boot-stdio")
PORT = f"{EXECD_PORT}/tcp"
DAEMON_RESERVE = 16
"""Threads of the daemon, which count as processes. Unlike in local sandboxes nothing keeps them for it."""

CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""What root inside keeps, the same as in local sandboxes."""

_CPU_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000


@dataclass(frozen=True)
class Names:
    """Everything that one server leaves with an engine is named after it. `instance` has 10 digits."""

    instance: str

    @property
    def network(self) -> str:
        """The network that the server makes."""
        return f"casulo-{self.instance}"

    @property
    def bridge(self) -> str:
        """That network's interface; begins as all sandboxes' interfaces do."""
        return f"{ANY_SANDBOX}{self.instance}d"

    @property
    def container_prefix(self) -> str:
        """How its containers' names begin."""
        return f"casulo-{self.instance}-"

    @property
    def labels(self) -> dict[str, str]:
        """What marks an object as this server's."""
        return {INSTANCE_LABEL: self.instance}

    @property
    def label_filter(self) -> str:
        """The same as the engine's filters want it."""
        return f"{INSTANCE_LABEL}={self.instance}"

    def container(self, sandbox_id: str) -> str:
        """The container of a sandbox."""
        return f"{self.container_prefix}{sandbox_id}"

    def sandbox(self, container: Mapping[str, Any]) -> str | None:
        """The sandbox of an entry of the engine's list; None when it only bears our labels.

        Images made of a sandbox hand its labels down to whatever somebody starts from them.
        """
        sandbox_id = str((container.get("Labels") or {}).get(SANDBOX_LABEL, ""))
        names = [str(name).lstrip("/") for name in container.get("Names") or ()]
        return sandbox_id if sandbox_id and self.container(sandbox_id) in names else None

    def program(self, digest: str) -> str:
        """The volume with the daemon of this digest."""
        return f"casulo-{self.instance}-execd-{digest}"

    def claim(self, claim: Claim) -> str:
        """The volume that a request names; those of other owners do not exist for it."""
        if not claim.owner:
            return claim.claim_name
        owner = hashlib.sha256(claim.owner.encode()).hexdigest()[:16]
        return f"casulo-{self.instance}-of-{owner}-{claim.claim_name}"

    @property
    def snapshot_repository(self) -> str:
        """The repository of the images that snapshots are."""
        return f"casulo-snapshot/{self.instance}"

    def snapshot(self, snapshot_id: str) -> str:
        """The image of a snapshot."""
        return f"{self.snapshot_repository}:{snapshot_id}"


@dataclass(frozen=True)
class Plan:
    """Everything that differs between two containers. `publish` is an address of the engine, or empty;
    `resolvers` and `address` are told by whoever connects the container, or empty where the engine does."""

    sandbox_id: str
    names: Names
    image: str
    resources: Resources
    program: str
    network: str
    resolvers: tuple[str, ...] = ()
    address: str = ""
    runtime: str = ""
    seccomp: str = ""
    publish: str = ""
    log_bytes: int = 10 << 20
    mounts: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """The body of `POST /containers/create`. The image's own words are the daemon's to follow."""
        return {
            "Image": self.image,
            "Hostname": self._hostname,
            "Entrypoint": list(DAEMON),
            "Cmd": [],
            "User": "0:0",
            "WorkingDir": "/",
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {**self.names.labels, SANDBOX_LABEL: self.sandbox_id, **self.labels},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": False,
            "Tty": False,
            "ExposedPorts": {PORT: {}} if self.publish else {},
            "HostConfig": self._host(),
        }

    @property
    def _hostname(self) -> str:
        return f"casulo-{self.sandbox_id[:8]}"

    def _host(self) -> dict[str, Any]:
        program = {"Type": "volume", "Source": self.program, "Target": DAEMON_FOLDER, "ReadOnly": True}
        return {
            **_limits(self.resources),
            "NetworkMode": self.network,
            "PortBindings": {PORT: [{"HostIp": self.publish, "HostPort": ""}]} if self.publish else {},
            "Dns": list(self.resolvers),
            "ExtraHosts": [f"{self._hostname}:{self.address}"] if self.address else [],
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges", *([f"seccomp={self.seccomp}"] if self.seccomp else [])],
            "Mounts": [{**program, "VolumeOptions": {"NoCopy": True}}, *map(dict, self.mounts)],
            "LogConfig": {"Type": "json-file", "Config": self._log()},
            "RestartPolicy": {"Name": "no"},
            "Runtime": self.runtime,
            "IpcMode": "private",
            "Privileged": False,
        }

    def _log(self) -> dict[str, str]:
        """Two files of half the size: the engine forgets a whole file at once."""
        return {"max-size": str(self.log_bytes // 2), "max-file": "2"}


def _limits(resources: Resources) -> dict[str, Any]:
    limits: dict[str, Any] = {
        # Not NanoCpus, which the engine refuses above the machine's number of processors.
        "CpuPeriod": _CPU_PERIOD_US,
        "CpuQuota": max(_LEAST_QUOTA_US, resources.cpu_millis * _CPU_PERIOD_US // 1000),
        "Memory": resources.memory_bytes,
        "MemorySwap": resources.memory_bytes,
        "PidsLimit": resources.pids + DAEMON_RESERVE,
        "ShmSize": resources.shm_bytes,
    }
    if resources.disk_bytes is not None:
        limits["StorageOpt"] = {"size": str(resources.disk_bytes)}
    return limits


def instance_of(data: Path) -> str:
    """What this server's objects are named after: drawn once, since data directories of two machines that
    share an engine may well have the same path."""
    file = data / "docker" / "instance"
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
    drawn = secrets.token_hex(5)
    partial = file.with_suffix(".partial")
    partial.write_text(drawn)
    os.replace(partial, file)
    return drawn
