# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What each isolation of the Docker runtime can do with its engine, and why not more. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from casulo.model.draft import DOCKER_RUNTIME_FEATURE, ISOLATED_SESSIONS_FEATURE
from casulo.model.policy import EGRESS_FEATURE, VAULT_FEATURE
from casulo.model.sandbox import Isolation
from casulo.runtimes.base import Ability, Capabilities
from casulo.runtimes.docker.engine import About
from casulo.runtimes.docker.settings import DockerSettings

_COMMON = frozenset({"pause", "snapshot", "limits.cpu", "limits.memory", "limits.pids", "limits.shm"})
_NOWHERE = {
    "gpu": "this runtime hands no GPU devices to sandboxes",
    ISOLATED_SESSIONS_FEATURE: "sandboxes of the Docker runtime cannot nest namespaces",
}
_NO_CHOICE = "the server's administrator allows OCI runtimes in [docker] selectable_runtimes"


def of_engine(
    about: About,
    settings: DockerSettings,
    trials: Mapping[str, str],
    limits_disk: bool,
    features: Collection[str],
    missing: Mapping[str, str],
    no_policy: Callable[[str], str],
) -> Capabilities:
    """`features` and `missing` are those of volumes; `trials` say why a runtime starts nothing, if so;
    `no_policy` says why containers of an OCI runtime can be under no network policy, if so."""
    usual = settings.docker_runtime or about.default_runtime
    default = Isolation.GVISOR if "runsc" in usual else Isolation.CONTAINER
    able = _everywhere(about, settings, limits_disk, features, missing)
    own = {default: _policed(able, no_policy(usual), usual)}
    no_gvisor = _why_no_gvisor(about, trials)
    if not no_gvisor:
        own.setdefault(Isolation.GVISOR, _policed(able, no_policy(about.gvisor), about.gvisor))
    unavailable = {} if Isolation.GVISOR in own else {f"isolation.{Isolation.GVISOR}": no_gvisor}
    return Capabilities(
        isolations=frozenset({Isolation.AUTO, *own}),
        features=own[default].features,
        missing={**own[default].missing, **unavailable},
        own=own,
        default=default,
    )


def _policed(able: Ability, why_not: str, engine: str) -> Ability:
    """The ability with network policies, or with the reason why they are missing."""
    if why_not:
        lacking = {EGRESS_FEATURE: why_not, VAULT_FEATURE: why_not}
        return Ability(able.features, {**able.missing, **lacking}, engine=engine)
    return Ability(able.features | {EGRESS_FEATURE, VAULT_FEATURE}, able.missing, engine=engine)


def _why_no_gvisor(about: About, trials: Mapping[str, str]) -> str:
    if not about.gvisor:
        return "register runsc with the engine: `runsc install`, then restart it"
    why = trials.get(about.gvisor, "")
    return why and f"the engine's runtime {about.gvisor} starts nothing here: {why}"


def _everywhere(
    about: About,
    settings: DockerSettings,
    limits_disk: bool,
    features: Collection[str],
    missing: Mapping[str, str],
) -> Ability:
    can, cannot = _COMMON | set(features), {**_NOWHERE, **missing}
    if limits_disk:
        can |= {"limits.disk"}
    else:
        cannot["limits.disk"] = (
            f"the engine's storage driver {about.storage} keeps no quota here; "
            "overlay2 on xfs mounted with pquota does"
        )
    if settings.selectable_runtimes:
        can |= {DOCKER_RUNTIME_FEATURE}
    else:
        cannot[DOCKER_RUNTIME_FEATURE] = _NO_CHOICE
    return Ability(can, cannot)
