# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies with the official SDK."""

from __future__ import annotations

from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

from scenarios.context import Context


async def policy_read_patched_deleted(context: Context) -> None:
    policy = NetworkPolicy(egress=[NetworkRule(action="allow", target="pypi.org")])
    async with context.sandbox(network_policy=policy) as sandbox:
        found = await sandbox.get_egress_policy()
        assert found.default_action == "deny"
        assert [(rule.action, rule.target) for rule in found.egress or []] == [("allow", "pypi.org")]
        await sandbox.patch_egress_rules(
            [
                NetworkRule(action="allow", target="www.github.com"),
                NetworkRule(action="deny", target="pypi.org"),
            ]
        )
        found = await sandbox.get_egress_policy()
        rules = [(rule.action, rule.target) for rule in found.egress or []]
        assert rules == [("allow", "www.github.com"), ("deny", "pypi.org")]
        for _ in range(2):
            await sandbox.delete_egress_rules(["www.github.com", "nothing.example.com"])
            found = await sandbox.get_egress_policy()
            assert [rule.target for rule in found.egress or []] == ["pypi.org"]
            assert found.default_action == "deny"


async def nonsense_is_refused(context: Context) -> None:
    policy = NetworkPolicy(egress=[])
    async with context.sandbox(network_policy=policy) as sandbox:
        try:
            await sandbox.patch_egress_rules([NetworkRule(action="allow", target="a.*.example.com")])
        except SandboxApiException as error:
            assert "star" in str(error)
        else:
            raise AssertionError("a pattern that means nothing was accepted")


async def without_a_policy(context: Context) -> None:
    async with context.sandbox() as sandbox:
        found = await sandbox.get_egress_policy()
        assert found.default_action == "allow" and not found.egress
