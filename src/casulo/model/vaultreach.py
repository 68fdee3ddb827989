# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whether a network policy lets through the hosts that a vault is bound to. Pure."""

from __future__ import annotations

from casulo.model import targets
from casulo.model.policy import Action, NetworkPolicy, Rule
from casulo.model.policywire import expanded
from casulo.model.targets import Ports, canonical
from casulo.model.vault import Vault, invalid, zip_ports


def check_reachable(vault: Vault, policy: NetworkPolicy) -> None:
    """InvalidRequest where a bound host cannot be reached under `policy`."""
    found = unreachable(vault, policy)
    if found:
        binding, host, port = found
        raise invalid(
            f"binding {binding!r}: the network policy does not allow {host} on port {port}",
            "allow the host first",
        )


def check_policy(vault: Vault, policy: NetworkPolicy) -> None:
    """InvalidRequest where a change of policy would leave a bound host unreachable."""
    found = unreachable(vault, policy)
    if found:
        binding, host, port = found
        raise invalid(
            f"this policy would not allow {host} on port {port}, as credential binding {binding!r} needs",
            "delete the binding first, or keep the host allowed",
        )


def unreachable(vault: Vault, policy: NetworkPolicy) -> tuple[str, str, int] | None:
    """The first binding, host and port that the policy denies; None when all are allowed."""
    rules = expanded(policy).egress
    for binding in vault.bindings.values():
        for host in binding.match.hosts:
            for scheme, port in zip_ports(binding.match):
                if not _allowed(rules, policy.default_action, host, port, scheme):
                    return binding.name, host, port
    return None


def _allowed(rules: tuple[Rule, ...], default: Action, host: str, port: int, scheme: str) -> bool:
    """The first rule about all of a host decides; for a wildcard, some names below it may be denied."""
    for rule in rules:
        if _about(rule, host) and _on(rule, port) and _whole(rule, scheme):
            return rule.action is Action.ALLOW
    return default is Action.ALLOW


def _about(rule: Rule, host: str) -> bool:
    if targets.is_address(rule.target):
        return False
    target = canonical(rule.target)
    below = target.startswith("*.") and host.removeprefix("*").endswith(target[1:])
    return target == host or (below and host != target[2:])


def _on(rule: Rule, port: int) -> bool:
    if rule.protocols and "tcp" not in rule.protocols:
        return False
    ranges = [Ports.parse(text) for text in rule.ports]
    return not ranges or any(each.first <= port <= each.last for each in ranges)


def _whole(rule: Rule, scheme: str) -> bool:
    """Rules on methods and paths let some plain requests through, and of encrypted ones none."""
    if not (rule.methods or rule.paths):
        return True
    return scheme == "http" if rule.action is Action.ALLOW else scheme == "https"
