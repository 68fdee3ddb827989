# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The lifecycle service as one caller may use it: what belongs to others does not exist for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from casulo.control.events import Event
from casulo.control.forks import Wish
from casulo.control.keys import Keys
from casulo.control.lifecycle import Lifecycle
from casulo.control.policies import Policies, Status
from casulo.control.pools import Pools
from casulo.control.pruning import Pruning
from casulo.control.snapshots import Snapshots
from casulo.control.vaults import Vaults
from casulo.model.draft import Draft
from casulo.model.errors import sandbox_not_found
from casulo.model.keys import Caller, Scope
from casulo.model.policy import NetworkPolicy, Rule
from casulo.model.pruning import Pruned
from casulo.model.sandbox import Handle, Sandbox
from casulo.model.snapshot import Change, Snapshot, snapshot_not_found
from casulo.model.template import Ordered, template_not_found
from casulo.model.vault import Binding, Credential, Patch, Vault
from casulo.runtimes.registry import Registry
from casulo.store.query import Page, Query, SnapshotQuery
from casulo.store.servers import Peer


class Access:
    """Checks scope and owner, then does what `Lifecycle` does under the same name."""

    def __init__(self, lifecycle: Lifecycle, caller: Caller) -> None:
        self._lifecycle = lifecycle
        self.caller = caller

    @property
    def runtimes(self) -> Registry:
        """The runtimes behind the service."""
        self.caller.require(Scope.READ)
        return self._lifecycle.runtimes

    @property
    def snapshots(self) -> SnapshotAccess:
        """The same for snapshots."""
        return SnapshotAccess(self, self._lifecycle.snapshots)

    @property
    def pruning(self) -> Pruning:
        """What may go."""
        return self._lifecycle.pruning

    @property
    def templates(self) -> TemplateAccess:
        """The same for templates."""
        return TemplateAccess(self, self._lifecycle)

    def pools(self, scope: Scope = Scope.READ) -> Pools:
        """The pools: everybody may see and use them, and an ADMIN changes them."""
        self.caller.require(scope)
        return self._lifecycle.pools

    @property
    def policies(self) -> PolicyAccess:
        """The same for network policies."""
        return PolicyAccess(self, self._lifecycle.policies)

    @property
    def vaults(self) -> VaultAccess:
        """The same for credential vaults."""
        return VaultAccess(self, self._lifecycle.vaults)

    @property
    def keys(self) -> Keys:
        """The API keys, for those who manage them."""
        self.caller.require(Scope.ADMIN)
        return self._lifecycle.keys

    async def servers(self) -> list[Peer]:
        """The servers that share the store, for those who run them."""
        self.caller.require(Scope.ADMIN)
        return await self._lifecycle.membership.servers()

    async def history(self, sandbox_id: str) -> list[Event]:
        """The last turns in its life, oldest first."""
        await self.reach(sandbox_id, Scope.READ)
        return self._lifecycle.history.of(sandbox_id)

    async def create(
        self, draft: Draft, *, idempotency_key: str | None = None, request_hash: str = ""
    ) -> Sandbox:
        """Start a sandbox that is the caller's."""
        self.caller.require(Scope.CREATE)
        await self._lifecycle.membership.ensure()
        return await self._lifecycle.create(
            draft, idempotency_key=idempotency_key, request_hash=request_hash, caller=self.caller
        )

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox; NotFound also when it is somebody else's."""
        return await self._owned(sandbox_id, Scope.READ)

    async def list(self, query: Query) -> Page[Sandbox]:
        """One page of what the caller sees, newest first."""
        self.caller.require(Scope.READ)
        return await self._lifecycle.list(replace(query, owner=self.caller.seen_owner))

    async def delete(self, sandbox_id: str) -> None:
        """Remove every trace."""
        await self.reach(sandbox_id, Scope.CREATE)
        await self._lifecycle.delete(sandbox_id)

    async def patch_metadata(self, sandbox_id: str, changes: Mapping[str, str | None]) -> Sandbox:
        """Merge `changes`, None removes."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.patch_metadata(sandbox_id, changes)

    async def renew(self, sandbox_id: str, until: datetime) -> datetime:
        """Set the end of life and return it."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.renew(sandbox_id, until)

    async def renew_on_access(self, sandbox_id: str) -> None:
        """A proxied request happened; `endpoint` has let it through before."""
        await self._lifecycle.renew_on_access(sandbox_id)

    async def pause(self, sandbox_id: str) -> Sandbox:
        """Freeze."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.pause(sandbox_id)

    async def resume(self, sandbox_id: str) -> Sandbox:
        """Thaw."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.resume(sandbox_id)

    async def fork(self, sandbox_id: str, wish: Wish) -> tuple[Sandbox, ...]:
        """Children of a sandbox, which are the caller's."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.fork(sandbox_id, wish, self.caller)

    async def endpoint(self, sandbox_id: str, port: int) -> Handle:
        """Where the sandbox's daemon is, with the token that opens it."""
        await self.reach(sandbox_id, Scope.CREATE)
        return await self._lifecycle.endpoint(sandbox_id, port)

    async def reach(self, sandbox_id: str, scope: Scope) -> Sandbox:
        """The sandbox on this machine, if the caller may do with it what `scope` says."""
        sandbox = await self._owned(sandbox_id, scope)
        self._lifecycle.require_here(sandbox)
        if scope is not Scope.READ:
            await self._lifecycle.membership.ensure()
        return sandbox

    async def _owned(self, sandbox_id: str, scope: Scope) -> Sandbox:
        """Whose it is comes first: a scope that lacks tells nothing about what others have."""
        sandbox = await self._lifecycle.get(sandbox_id)
        if not self.caller.sees(sandbox.owner):
            raise sandbox_not_found(sandbox_id)
        self.caller.require(scope)
        return sandbox


class PolicyAccess:
    """`control.Policies` in the same way: reading needs READ, whatever changes something CREATE."""

    def __init__(self, access: Access, policies: Policies) -> None:
        self._access = access
        self._policies = policies

    async def get(self, sandbox_id: str) -> Status:
        """What holds."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._policies.get(sandbox_id)

    async def replace(self, sandbox_id: str, policy: NetworkPolicy) -> Status:
        """Put the sandbox under `policy`."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._policies.replace(sandbox_id, policy)

    async def merge(self, sandbox_id: str, rules: Sequence[Rule]) -> Status:
        """Put `rules` before those that they do not override."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._policies.merge(sandbox_id, rules)

    async def remove(self, sandbox_id: str, targets: Sequence[str]) -> Status:
        """Take the rules on some targets out."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._policies.remove(sandbox_id, targets)

    async def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The destinations that were allowed."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._policies.seen(sandbox_id)

    async def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        """What would become of a request."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._policies.test(sandbox_id, url, method)

    async def log(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
        """Lines of the audit log about the sandbox."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._policies.log(sandbox_id, follow=follow)

    async def supported(self, sandbox_id: str) -> bool:
        """Whether the sandbox's runtime enforces policies."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._policies.supported(sandbox_id)


class VaultAccess:
    """`control.Vaults` in the same way."""

    def __init__(self, access: Access, vaults: Vaults) -> None:
        self._access = access
        self._vaults = vaults

    async def get(self, sandbox_id: str) -> Vault:
        """The vault."""
        await self._access.reach(sandbox_id, Scope.READ)
        return await self._vaults.get(sandbox_id)

    async def create(
        self, sandbox_id: str, credentials: tuple[Credential, ...], bindings: tuple[Binding, ...]
    ) -> Vault:
        """Make one."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._vaults.create(sandbox_id, credentials, bindings, self._access.caller)

    async def patch(self, sandbox_id: str, patch: Patch) -> Vault:
        """Change it."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._vaults.patch(sandbox_id, patch, self._access.caller)

    async def delete(self, sandbox_id: str) -> None:
        """Forget it."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        await self._vaults.delete(sandbox_id, self._access.caller)


class SnapshotAccess:
    """`control.Snapshots` in the same way."""

    def __init__(self, access: Access, snapshots: Snapshots) -> None:
        self._access = access
        self._snapshots = snapshots

    async def take(self, sandbox_id: str, name: str = "") -> Snapshot:
        """Accept a snapshot of a running sandbox, whose owner owns it too."""
        await self._access.reach(sandbox_id, Scope.CREATE)
        return await self._snapshots.take(sandbox_id, name)

    async def get(self, snapshot_id: str) -> Snapshot:
        """The snapshot; NotFound also when it is somebody else's."""
        return await self._reach(snapshot_id, Scope.READ)

    async def list(self, query: SnapshotQuery) -> Page[Snapshot]:
        """One page of what the caller sees, newest first."""
        caller = self._access.caller
        caller.require(Scope.READ)
        return await self._snapshots.list(replace(query, owner=caller.seen_owner))

    async def delete(self, snapshot_id: str) -> None:
        """Remove every trace."""
        await self._reach(snapshot_id, Scope.CREATE)
        await self._access.pruning.unstarted(snapshot_id)
        await self._snapshots.delete(snapshot_id)

    async def diff(self, old_id: str, new_id: str) -> Sequence[Change]:
        """The files that differ between two that the caller sees."""
        old = await self._reach(old_id, Scope.READ)
        return await self._snapshots.diff(old, await self._reach(new_id, Scope.READ))

    async def _reach(self, snapshot_id: str, scope: Scope) -> Snapshot:
        snapshot = await self._snapshots.get(snapshot_id)
        if not self._access.caller.sees(snapshot.owner):
            raise snapshot_not_found(snapshot_id)
        self._access.caller.require(scope)
        return snapshot


class TemplateAccess:
    """`control.Templates` in the same way."""

    def __init__(self, access: Access, lifecycle: Lifecycle) -> None:
        self._access = access
        self._lifecycle = lifecycle
        self._templates = lifecycle.templates

    def supported(self) -> None:
        """Unsupported where nothing can be kept."""
        self._templates.supported()

    async def create(self, draft: Draft, ordered: Ordered) -> Snapshot:
        """Begin to make one that is the caller's, within the caller's limits."""
        caller, lifecycle = self._access.caller, self._lifecycle
        caller.require(Scope.CREATE)

        async def create(wanted: Draft, whose: Caller) -> Sandbox:
            return await lifecycle.create(wanted, caller=whose)

        return await self._templates.create(draft, ordered, caller, lifecycle.plan, create)

    async def get(self, template_id: str) -> Snapshot:
        """The template; NotFound also when it is somebody else's."""
        return await self._reach(template_id, Scope.READ)

    async def list(self, metadata: Mapping[str, str], page: int, page_size: int) -> Page[Snapshot]:
        """One page of what the caller sees, newest first."""
        caller = self._access.caller
        caller.require(Scope.READ)
        return await self._templates.list(metadata, page, page_size, caller.seen_owner)

    async def delete(self, template_id: str) -> None:
        """Remove every trace."""
        await self._reach(template_id, Scope.CREATE)
        await self._access.pruning.unstarted(template_id)
        await self._templates.delete(template_id)

    async def prune(self, *, unused: bool, dry: bool) -> Pruned:
        """Remove those of the caller that nobody needs."""
        self._access.caller.require(Scope.CREATE)
        return await self._access.pruning.prune(self._access.caller, unused=unused, dry=dry)

    async def _reach(self, template_id: str, scope: Scope) -> Snapshot:
        template = await self._templates.get(template_id)
        if not self._access.caller.sees(template.owner):
            raise template_not_found(template_id)
        self._access.caller.require(scope)
        return template
