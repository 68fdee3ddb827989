# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Policies between wire and values: merging, removing, presets, and what stays as it was written."""

from __future__ import annotations

from casulo.model.policy import Action, NetworkPolicy
from casulo.model.policywire import expanded, merged, parse_policy, parse_rules, wire, without
from casulo.model.targets import canonical


def _policy(*targets: str) -> NetworkPolicy:
    return parse_policy({"egress": [{"action": "allow", "target": target} for target in targets]})


def test_nothing_denies_everything() -> None:
    for data in (None, {}, {"egress": None}, {"defaultAction": None}):
        assert parse_policy(data) == NetworkPolicy(Action.DENY)
    assert parse_policy({}).mode == "deny_all"
    assert parse_policy({"defaultAction": "allow"}).mode == "allow_all"
    assert parse_rules([{"target": "a.test"}])[0].action is Action.DENY


def test_merging_puts_new_rules_first_and_overrides_by_target() -> None:
    held = _policy("a.test", "b.test")
    rules = parse_rules([{"action": "deny", "target": "B.Test."}, {"action": "allow", "target": "b.test"}])
    found = merged(held, rules)
    assert [(rule.action, rule.target) for rule in found.egress] == [("deny", "B.Test."), ("allow", "a.test")]


def test_removing_compares_what_targets_mean() -> None:
    held = _policy("bücher.test", "10.0.0.0/8", "c.test")
    assert without(held, ["XN--BCHER-KVA.test", "10.0.0.1/8"]).egress == _policy("c.test").egress
    assert without(held, ["nothing.test"]) is held


def test_what_was_written_is_told_and_presets_are_meant() -> None:
    rule = {"action": "allow", "target": "preset:pypi", "ports": [443, "8000-8010"], "protocols": ["tcp"]}
    policy = parse_policy({"defaultAction": "deny", "egress": [rule]})
    assert wire(policy) == {"defaultAction": "deny", "egress": [rule]}
    assert [r.target for r in expanded(policy).egress] == ["pypi.org", "files.pythonhosted.org"]
    assert {r.ports for r in expanded(policy).egress} == {("443", "8000-8010")}


def test_canonical_forms() -> None:
    assert canonical("*.Example.COM.") == "*.example.com"
    assert canonical("192.0.2.7") == "192.0.2.7/32"
    assert canonical("PRESET:pypi") == "preset:pypi"
