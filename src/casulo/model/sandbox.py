# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox is: the spec that was asked for, and the record of what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from casulo.model.policy import NetworkPolicy
from casulo.model.states import Status
from casulo.model.volume import Volume

DEFAULT_ENTRYPOINT = ("tail", "-f", "/dev/null")
EXECD_PORT = 44772
EGRESS_PORT = 18080
MIN_TIMEOUT_SECONDS = 60


class Isolation(StrEnum):
    """How far the sandbox is kept from the host's kernel; `auto` lets the server choose."""

    AUTO = "auto"
    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"


@dataclass(frozen=True)
class Resources:
    """Hard limits. `cpu_millis` in thousandths of a core, the others in bytes or counts."""

    cpu_millis: int
    memory_bytes: int
    pids: int
    shm_bytes: int
    disk_bytes: int | None = None


@dataclass(frozen=True)
class Platform:
    """Operating system and architecture, as OCI names them."""

    os: str
    arch: str


@dataclass(frozen=True)
class Hook:
    """A command that the daemon runs by itself, ended after its timeout.

    Without a name it runs once, before the entrypoint; with name and schedule again and again.
    """

    command: tuple[str, ...]
    timeout_seconds: int
    name: str = ""
    schedule: str = ""


@dataclass(frozen=True)
class Spec:
    """What the caller asked for, completed with defaults. Of it, only the policy changes later.

    `resource_limits` is the caller's own text, kept to be echoed; `resources` is its meaning.
    `entrypoint` is empty when the image decides. The entrypoint is not started when `pre_start` fails.
    With `snapshot_id` the files are those of the snapshot, and `image` only says what it came from.
    Without `network_policy` public addresses are reached freely. With `credential_proxy` there may be a
    vault; `trusted_ca` is then the certificate that programs shall trust, filled in for a start and not kept.
    `lineage` names the sandbox whose snapshot it began with, that one's, and so on, there or not.
    """

    image: str
    entrypoint: tuple[str, ...]
    resources: Resources
    resource_limits: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    isolation: Isolation = Isolation.AUTO
    platform: Platform | None = None
    timeout_seconds: int | None = None
    pre_start: Hook | None = None
    periodic: tuple[Hook, ...] = ()
    volumes: tuple[Volume, ...] = ()
    snapshot_id: str | None = None
    network_policy: NetworkPolicy | None = None
    credential_proxy: bool = False
    lineage: tuple[str, ...] = ()
    trusted_ca: str = ""


@dataclass(frozen=True)
class Handle:
    """Where a live sandbox is found; written by its runtime, kept by the store.

    `host`:`port` is the execution daemon as the server reaches it. `token` guards it.
    `data` is the runtime's own and opaque to everybody else.
    """

    host: str
    port: int
    token: str
    data: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """How the user's entrypoint ended: an exit `code`, or the `signal` name that ended it."""

    code: int | None
    signal: str = ""
    oom: bool = False


@dataclass(frozen=True)
class Sandbox:
    """One row of the store: intent, last known reality, and when it ends by itself."""

    id: str
    spec: Spec
    status: Status
    created_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)
    expires_at: datetime | None = None
    runtime: str = ""
    handle: Handle | None = None
    exit: Exit | None = None
    owner: str = ""
    """Whose it is, as API keys name their owners; empty for the server's own key."""
    server: str = ""
    """Which of the servers that share a store has it on its machine; empty where there is only one."""
