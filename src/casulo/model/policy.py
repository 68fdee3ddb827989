# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies as values: an ordered list of rules with a default; the first that matches decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EGRESS_FEATURE = "egress"
"""By which a runtime declares that it enforces policies."""

VAULT_FEATURE = "vault"
"""By which it declares that it can also inject credentials into what they let through."""


class Action(StrEnum):
    """What happens to what a rule matches."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True)
class Rule:
    """One line. `target` is kept as it was written: a name, a `*.wildcard`, an address, a network or a
    `preset:`. Empty tuples mean any."""

    action: Action
    target: str
    ports: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class NetworkPolicy:
    """Rules in order, and what happens to what none of them matches."""

    default_action: Action = Action.DENY
    egress: tuple[Rule, ...] = ()

    @property
    def mode(self) -> str:
        """The policy in one word, as the protocol has it."""
        return "enforcing" if self.egress else f"{self.default_action}_all"
