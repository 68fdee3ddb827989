# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies between wire and values: parsing, merging, telling. Enforcing is elsewhere.

What could not be enforced as it is written is refused here, so that every policy means one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from casulo.model import presets, targets
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.policy import Action, NetworkPolicy, Rule
from casulo.model.targets import Ports, canonical

MAX_RULES = 4096
_MAX_NAMED_DATAGRAM_PORTS = 64
_HIDDEN = (53, 80, 443, 853)
"""UDP ports on which names cannot be checked (QUIC), or are asked for elsewhere (DNS)."""

_RULE_MEMBERS = ("action", "target", "ports", "protocols", "methods", "paths")
_POLICY_MEMBERS = ("defaultAction", "egress")
_PROTOCOLS = ("tcp", "udp", "icmp")


def parse_policy(data: Any) -> NetworkPolicy:
    """A policy from its wire form; None and `{}` deny everything."""
    members = _members({} if data is None else data, _POLICY_MEMBERS, "networkPolicy")
    default = members.get("defaultAction")
    action = Action.DENY if default is None else _action(default, "defaultAction")
    return limited(
        NetworkPolicy(action, parse_rules([] if (rules := members.get("egress")) is None else rules))
    )


def parse_rules(data: Any) -> tuple[Rule, ...]:
    """Rules from their wire form."""
    if not isinstance(data, list):
        raise _invalid("the rules of a policy must be a list")
    return tuple(_rule(item, f"rule {number}") for number, item in enumerate(data, 1))


def parse_targets(data: Any) -> tuple[str, ...]:
    """Targets whose rules shall go."""
    if not isinstance(data, list) or not data or not all(isinstance(item, str) for item in data):
        raise _invalid("give the targets to remove as a list of texts that is not empty")
    return tuple(data)


def merged(policy: NetworkPolicy, rules: Sequence[Rule]) -> NetworkPolicy:
    """`rules` first, each target's first one only, then what they do not override."""
    if not rules:
        raise _invalid("give at least one rule")
    first: dict[str, Rule] = {}
    for rule in rules:
        first.setdefault(canonical(rule.target), rule)
    kept = tuple(rule for rule in policy.egress if canonical(rule.target) not in first)
    return limited(replace(policy, egress=(*first.values(), *kept)))


def without(policy: NetworkPolicy, gone: Iterable[str]) -> NetworkPolicy:
    """The policy without the rules on some targets; the same object when it has none of them."""
    unwanted = {canonical(target) for target in gone}
    kept = tuple(rule for rule in policy.egress if canonical(rule.target) not in unwanted)
    return policy if len(kept) == len(policy.egress) else replace(policy, egress=kept)


def limited(policy: NetworkPolicy) -> NetworkPolicy:
    """The same policy, or an error when it has too many rules."""
    if len(policy.egress) > MAX_RULES:
        raise InvalidRequest(
            f"a policy has at most {MAX_RULES} rules, and this one has {len(policy.egress)}",
            code=Code.NETWORK_POLICY_TOO_LARGE,
            hint="use wildcards and networks instead of single names and addresses",
        )
    return policy


def wire(policy: NetworkPolicy) -> dict[str, Any]:
    """The policy as it is written on the wire."""
    return {"defaultAction": policy.default_action.value, "egress": [_wire_rule(r) for r in policy.egress]}


def expanded(policy: NetworkPolicy) -> NetworkPolicy:
    """The same policy with the names of its presets instead of theirs."""
    rules: list[Rule] = []
    for rule in policy.egress:
        names = presets.names_of(rule.target)
        rules += [rule] if names is None else [replace(rule, target=name) for name in names]
    return replace(policy, egress=tuple(rules))


def _wire_rule(rule: Rule) -> dict[str, Any]:
    told: dict[str, Any] = {"action": rule.action.value, "target": rule.target}
    if rule.ports:
        told["ports"] = [int(text) if text.isdigit() else text for text in rule.ports]
    for name in ("protocols", "methods", "paths"):
        if values := getattr(rule, name):
            told[name] = list(values)
    return told


def _members(data: Any, known: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _invalid(f"{where}: this is no object")
    for name in data:
        if name not in known:
            raise _invalid(f"{where}: unknown member {name!r}", hint=f"known: {', '.join(known)}")
    return data


def _action(data: Any, where: str) -> Action:
    try:
        return Action(str(data).lower())
    except ValueError:
        raise _invalid(f"{where}: {data!r} is neither 'allow' nor 'deny'") from None


def _rule(data: Any, where: str) -> Rule:
    members = _members(data, _RULE_MEMBERS, where)
    action = members.get("action")
    target = members.get("target")
    if not isinstance(target, str):
        raise _invalid(f"{where}: target must be a text")
    rule = Rule(
        action=Action.DENY if action is None else _action(action, where),
        target=targets.checked(target.strip(), where),
        ports=tuple(targets.ports(item, where).text for item in _list(members, "ports", where)),
        protocols=tuple(_word(item, _PROTOCOLS, where) for item in _list(members, "protocols", where)),
        methods=tuple(_method(item, where) for item in _list(members, "methods", where)),
        paths=tuple(_path(item, where) for item in _list(members, "paths", where)),
    )
    if rule.action is Action.ALLOW:
        _check_enforceable(rule, where)
    return rule


def _list(members: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = members.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid(f"{where}: {name} must be a list")
    return value


def _word(data: Any, known: Sequence[str], where: str) -> str:
    word = str(data).lower()
    if word not in known:
        raise _invalid(f"{where}: unknown protocol {data!r}", hint=f"known: {', '.join(known)}")
    return word


def _method(data: Any, where: str) -> str:
    if not isinstance(data, str) or not data.isascii() or not data.replace("-", "").isalpha():
        raise _invalid(f"{where}: {data!r} is no HTTP method")
    return data.upper()


def _path(data: Any, where: str) -> str:
    if not isinstance(data, str) or not data.startswith("/") or "*" in data[:-1] or "?" in data:
        raise _invalid(f"{where}: {data!r} is no path", hint="write /exactly/this or /all/below/*")
    return data


def _check_enforceable(rule: Rule, where: str) -> None:
    """Refuse what an allowing rule says but no packet filter could keep apart from something else."""
    if targets.is_ipv6(rule.target):
        raise Unsupported(
            f"{where}: {rule.target} is an IPv6 target, and sandboxes have no IPv6",
            code=Code.NETWORK_POLICY_INVALID,
            hint="name the host, or its IPv4 address",
        )
    ranges = [Ports.parse(text) for text in rule.ports]
    if rule.methods or rule.paths:
        _check_visible(rule, ranges, where)
    if not targets.is_address(rule.target):
        _check_named(rule, ranges, where)


def _check_visible(rule: Rule, ranges: Sequence[Ports], where: str) -> None:
    if any(protocol != "tcp" for protocol in rule.protocols):
        raise _invalid(f"{where}: methods and paths are of HTTP, which is TCP")
    if ranges and all(p.first == p.last == 443 for p in ranges):
        raise _invalid(f"{where}: methods and paths of encrypted requests cannot be seen", hint="use port 80")


def _check_named(rule: Rule, ranges: Sequence[Ports], where: str) -> None:
    hint = "write a rule on the address for that"
    if "icmp" in rule.protocols:
        raise _invalid(f"{where}: ICMP carries no name", hint=hint)
    if rule.protocols and "udp" not in rule.protocols:
        return
    if "udp" in rule.protocols and any(p.first <= port <= p.last for p in ranges for port in _HIDDEN):
        raise _invalid(f"{where}: names cannot be checked on the UDP ports 53, 80, 443 and 853", hint=hint)
    if sum(p.last - p.first + 1 for p in ranges) > _MAX_NAMED_DATAGRAM_PORTS:
        raise _invalid(
            f"{where}: a rule on a name opens at most {_MAX_NAMED_DATAGRAM_PORTS} ports for UDP",
            hint='say "protocols": ["tcp"], or list fewer ports',
        )


def _invalid(message: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, code=Code.NETWORK_POLICY_INVALID, hint=hint)
