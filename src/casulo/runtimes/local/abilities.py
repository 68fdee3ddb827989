# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What each isolation of the local runtime can do on this host, and why not more. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from casulo.model.draft import ISOLATED_SESSIONS_FEATURE
from casulo.model.memory import PAUSE_TO_DISK_FEATURE, SNAPSHOT_MEMORY_FEATURE
from casulo.model.policy import EGRESS_FEATURE, VAULT_FEATURE
from casulo.model.sandbox import Isolation
from casulo.runtimes.base import Ability, Capabilities
from casulo.runtimes.local.host import Host

_NO_NETWORK = "a server that is not run by root gives its sandboxes no network"
COMMON = frozenset({"pause", "snapshot", "limits.cpu", "limits.memory", "limits.pids", "limits.shm"})
_NOWHERE = {
    "limits.disk": "this runtime has no quota on what a sandbox writes to its disk",
    "gpu": "this runtime hands no GPU devices to sandboxes",
}
OOM_SCOPE = "limits.memory.per_command"
"""That only the process is killed which passed the memory limit, and not the whole sandbox."""


def of_host(
    host: Host, default: str, features: Collection[str], missing_here: Mapping[str, str]
) -> Capabilities:
    """The abilities of the isolations that this host has; `features` are those of all of them."""
    everywhere, nowhere = COMMON | set(features), {**_NOWHERE, **missing_here}
    if host.rootless:
        nowhere |= {EGRESS_FEATURE: _NO_NETWORK, VAULT_FEATURE: _NO_NETWORK}
    else:
        everywhere |= {EGRESS_FEATURE, VAULT_FEATURE}
    own = {Isolation.CONTAINER: _container(host, everywhere, nowhere)}
    missing = dict(own[Isolation.CONTAINER].missing)
    if host.gvisor:
        own[Isolation.GVISOR] = _gvisor(host, everywhere, nowhere)
    else:
        missing[f"isolation.{Isolation.GVISOR}"] = host.no_gvisor
    return Capabilities(
        isolations=frozenset({Isolation.AUTO, *own}),
        features=own[Isolation.CONTAINER].features,
        missing=missing,
        own=own,
        default=Isolation(default),
    )


def _container(host: Host, everywhere: frozenset[str], nowhere: Mapping[str, str]) -> Ability:
    features, missing = everywhere | {OOM_SCOPE}, dict(nowhere)
    missing[SNAPSHOT_MEMORY_FEATURE] = "only isolation gvisor can write a sandbox's memory down"
    missing[PAUSE_TO_DISK_FEATURE] = missing[SNAPSHOT_MEMORY_FEATURE]
    if host.user_namespace:
        features |= {ISOLATED_SESSIONS_FEATURE}
    else:
        missing[ISOLATED_SESSIONS_FEATURE] = "a server run by root, crun, and user namespaces are needed"
    return Ability(features, missing, engine=host.container.name)


def _gvisor(host: Host, everywhere: frozenset[str], nowhere: Mapping[str, str]) -> Ability:
    missing = {
        **nowhere,
        ISOLATED_SESSIONS_FEATURE: "gVisor has no mount namespaces to nest; use one sandbox per session",
        OOM_SCOPE: "gVisor holds all of a sandbox's memory; the kernel ends the sandbox as a whole",
    }
    engine = host.engine(Isolation.GVISOR)
    able = everywhere | {SNAPSHOT_MEMORY_FEATURE, PAUSE_TO_DISK_FEATURE}
    return Ability(able, missing, engine=engine.name, platform=engine.platform)
