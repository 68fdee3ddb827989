# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies of live sandboxes: what holds, and how it is changed. The store keeps what holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from casulo.control.context import Context
from casulo.control.vaults import Vaults
from casulo.model.errors import Code, Conflict, Unsupported
from casulo.model.policy import EGRESS_FEATURE, Action, NetworkPolicy, Rule
from casulo.model.policywire import merged, without
from casulo.model.sandbox import Sandbox
from casulo.model.states import ENDED, State
from casulo.runtimes.base import Egress

Change = Callable[[NetworkPolicy], NetworkPolicy]

UNRESTRICTED = NetworkPolicy(Action.ALLOW)
"""What a sandbox without a policy can reach: everything public."""

NOTHING_REMOVED = "no matching targets found"


@dataclass(frozen=True)
class Status:
    """A policy, and what is to be said about it."""

    policy: NetworkPolicy
    reason: str = ""
    failures: int = 0
    last_failure: str = ""


class Policies:
    """Each change is atomic: it holds everywhere or nowhere, and runs to its end without its caller."""

    def __init__(self, context: Context, vaults: Vaults) -> None:
        self._context = context
        self._vaults = vaults

    async def get(self, sandbox_id: str) -> Status:
        """What holds, and whether the last change failed."""
        sandbox, egress = await self._find(sandbox_id)
        if sandbox.spec.network_policy is None:
            return Status(UNRESTRICTED)
        state = await egress.state(sandbox_id) if sandbox.status.state is not State.PENDING else {}
        return Status(
            sandbox.spec.network_policy,
            failures=state.get("failures", 0),
            last_failure=state.get("lastFailure", ""),
        )

    async def replace(self, sandbox_id: str, policy: NetworkPolicy) -> Status:
        """Put the sandbox under `policy`."""
        return await self._change(sandbox_id, lambda _: policy)

    async def merge(self, sandbox_id: str, rules: Sequence[Rule]) -> Status:
        """Put `rules` before those that they do not override."""
        return await self._change(sandbox_id, lambda held: merged(held, rules))

    async def remove(self, sandbox_id: str, targets: Sequence[str]) -> Status:
        """Take the rules on some targets out."""
        return await self._change(sandbox_id, lambda held: without(held, targets), unchanged=NOTHING_REMOVED)

    async def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The destinations that the sandbox was allowed to reach."""
        _, egress = await self._policed(sandbox_id)
        return await egress.seen(sandbox_id)

    async def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        """What would become of a request, and which rule decides."""
        _, egress = await self._policed(sandbox_id)
        return await egress.test(sandbox_id, url, method)

    async def log(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
        """Lines of the audit log about the sandbox."""
        _, egress = await self._policed(sandbox_id)
        return egress.log(sandbox_id, follow=follow)

    async def supported(self, sandbox_id: str) -> bool:
        """Whether the sandbox's runtime enforces policies."""
        sandbox = await self._context.get(sandbox_id)
        return self._context.runtimes.named(sandbox.runtime).egress is not None

    async def _change(self, sandbox_id: str, change: Change, *, unchanged: str = "") -> Status:
        work = self._apply(sandbox_id, change, unchanged)
        return await self._context.tasks.run(work, f"policy of {sandbox_id}")

    async def _apply(self, sandbox_id: str, change: Change, unchanged: str) -> Status:
        async with self._context.locks.hold(sandbox_id):
            sandbox, egress = await self._find(sandbox_id)
            held = sandbox.spec.network_policy or UNRESTRICTED
            wanted = change(held)
            if wanted == sandbox.spec.network_policy:
                return Status(wanted, reason=unchanged)
            await self._vaults.check_policy(sandbox, wanted)
            await egress.apply(sandbox_id, wanted)
            try:
                await self._context.update(sandbox_id, lambda found: _with(found, wanted))
            except Exception:  # what is not kept must not hold
                await egress.apply(sandbox_id, held)
                raise
            return Status(wanted)

    async def _policed(self, sandbox_id: str) -> tuple[Sandbox, Egress]:
        sandbox, egress = await self._find(sandbox_id)
        if sandbox.spec.network_policy is None:
            raise Conflict(
                f"sandbox {sandbox_id} has no network policy, so its connections are not looked at",
                code=Code.SANDBOX_STATE_CONFLICT,
                hint='give it one first; {"defaultAction": "allow"} records everything and denies little',
            )
        return sandbox, egress

    async def _find(self, sandbox_id: str) -> tuple[Sandbox, Egress]:
        sandbox = await self._context.get(sandbox_id)
        runtime = self._context.runtimes.named(sandbox.runtime)
        if runtime.egress is None:
            raise Unsupported(
                f"the runtime {runtime.name!r} cannot enforce network policies",
                code=Code.NETWORK_POLICY_NOT_SUPPORTED,
                hint=runtime.capabilities.missing.get(EGRESS_FEATURE, "choose another runtime"),
            )
        if sandbox.status.state in ENDED or sandbox.status.state in (State.PENDING, State.STOPPING):
            raise Conflict(
                f"sandbox {sandbox_id} is {sandbox.status.state}",
                code=Code.SANDBOX_NOT_RUNNING,
                hint="policies are of running and paused sandboxes",
            )
        return sandbox, runtime.egress


def _with(sandbox: Sandbox, policy: NetworkPolicy) -> Sandbox:
    return replace(sandbox, spec=replace(sandbox.spec, network_policy=policy))
