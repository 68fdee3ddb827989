# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Credential vaults of live sandboxes: what they hold, how it is changed, kept and told to those who inject.

The store holds everything sealed. Values are opened to be told to the egress process, and at no other time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from casulo.control import authority
from casulo.control.authority import Authority
from casulo.control.context import Context
from casulo.control.sealing import Keyring
from casulo.control.sources import Sources
from casulo.model import vaultkept
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest
from casulo.model.keys import Caller
from casulo.model.policy import NetworkPolicy
from casulo.model.sandbox import Sandbox, Spec
from casulo.model.states import ENDED, State
from casulo.model.vault import (
    Binding,
    Credential,
    Patch,
    Vault,
    created,
    fits_header,
    patched,
    vault_not_found,
)
from casulo.model.vaultreach import check_policy, check_reachable
from casulo.model.vaultwire import auth_wire, match_wire
from casulo.runtimes.base import Injects, Runtime
from casulo.store.sealed import Sealed

VAULT, AUTHORITY = "vault", "authority"

_LOOK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class NotEnabled(InvalidRequest):
    """The sandbox was not made for it."""


@dataclass(frozen=True)
class _Held:
    """What is sealed of one sandbox or snapshot, opened."""

    authority: Authority | None
    vault: Vault | None


class Vaults:
    """Each change is atomic: it holds everywhere or nowhere, and runs to its end without its caller."""

    def __init__(self, context: Context, keyring: Keyring, sources: Sources) -> None:
        self._context = context
        self._rows = context.store.sealed
        self._keyring = keyring
        self._sources = sources
        self._moving: dict[str, tuple[Runtime, _Held, dict[str, Any]]] = {}
        """Vaults whose values may change without anybody telling us."""

    async def open(self) -> None:
        """Before the runtimes open: tell them what the sandboxes of an earlier server are given."""
        await self._rows.forget_strays()
        sandboxes = [each for each in await self._context.store.all() if each.spec.credential_proxy]
        for runtime in self._context.runtimes.all:
            if isinstance(runtime, Injects):
                theirs = [each.id for each in sandboxes if each.runtime == runtime.name]
                runtime.foretell(await self._known(theirs, runtime))

    async def _known(self, sandbox_ids: list[str], runtime: Runtime) -> dict[str, Mapping[str, Any]]:
        """What the sandboxes of one runtime are given; from here on changes of it are followed."""
        known: dict[str, Mapping[str, Any]] = {}
        for sandbox_id in sandbox_ids:
            try:
                held = await self._open(sandbox_id)
                told = await self._told(held)
            except CasuloError as error:  # the others must not suffer for it
                _log.error("vault.unusable", sandbox=sandbox_id, code=error.code, error=str(error))
                continue
            self._follow(sandbox_id, runtime, held, told)
            if told is not None:
                known[sandbox_id] = told
        return known

    async def get(self, sandbox_id: str) -> Vault:
        """The vault, or NotFound."""
        sandbox = await self._context.get(sandbox_id)
        held = await self._open(sandbox_id) if sandbox.spec.credential_proxy else None
        if held is None or held.vault is None:
            raise vault_not_found(sandbox_id)
        return held.vault

    async def create(
        self,
        sandbox_id: str,
        credentials: tuple[Credential, ...],
        bindings: tuple[Binding, ...],
        caller: Caller,
    ) -> Vault:
        """Make the vault of a sandbox, which has none yet."""

        def made(held: Vault | None) -> Vault:
            if held is not None:
                raise Conflict(
                    f"sandbox {sandbox_id} has a credential vault already",
                    code=Code.VAULT_EXISTS,
                    hint="change it with PATCH, or delete it first",
                )
            return created(credentials, bindings)

        changed = await self._change(sandbox_id, made, credentials, caller)
        assert changed is not None
        return changed

    async def patch(self, sandbox_id: str, patch: Patch, caller: Caller) -> Vault:
        """Change the vault as a whole."""

        def after(held: Vault | None) -> Vault:
            if held is None:
                raise vault_not_found(sandbox_id)
            return patched(held, patch)

        given = (*patch.credentials.add, *patch.credentials.replace)
        changed = await self._change(sandbox_id, after, given, caller)
        assert changed is not None
        return changed

    async def delete(self, sandbox_id: str, caller: Caller) -> None:
        """Forget everything but the certificate authority, which the sandbox trusts for good."""

        def gone(held: Vault | None) -> None:
            if held is None:
                raise vault_not_found(sandbox_id)

        await self._change(sandbox_id, gone, (), caller)

    async def check_policy(self, sandbox: Sandbox, policy: NetworkPolicy) -> None:
        """InvalidRequest where `policy` would leave a bound host unreachable. The sandbox's lock is held."""
        if sandbox.spec.credential_proxy and (held := await self._open(sandbox.id)).vault is not None:
            check_policy(held.vault, policy)

    async def check_restore(self, spec: Spec) -> None:
        """Refuse, before anything happens, what `equip` could not do with a snapshot's vault."""
        if spec.snapshot_id is None or not spec.credential_proxy or spec.network_policy is None:
            return
        held = await self._open(spec.snapshot_id)
        if held.vault is not None:
            check_reachable(held.vault, spec.network_policy)

    async def equip(self, sandbox: Sandbox, runtime: Runtime) -> Sandbox:
        """Before it starts: the certificate that it shall trust, and what its requests are given. Idempotent.

        The certificate is in the answer's spec only; the store has it with its key.
        """
        if not sandbox.spec.credential_proxy:
            return sandbox
        held = await self._open(sandbox.id)
        if held.authority is None:
            held = await self._provided(sandbox)
        assert held.authority is not None
        await self._arm(sandbox.id, runtime, held)
        return replace(sandbox, spec=replace(sandbox.spec, trusted_ca=held.authority.certificate))

    async def keep(self, snapshot_id: str, sandbox: Sandbox) -> None:
        """Let a snapshot have what its source has."""
        if sandbox.spec.credential_proxy:
            await self._seal(snapshot_id, await self._open(sandbox.id))

    async def forget(self, sandbox: Sandbox, runtime: Runtime) -> None:
        """It is gone; its rows go with its own."""
        self._moving.pop(sandbox.id, None)
        if sandbox.spec.credential_proxy and runtime.egress is not None:
            await runtime.egress.arm(sandbox.id, None)

    async def run(self) -> None:
        """Supervisor: tell of values that changed where they come from. Ends by being cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for sandbox_id in list(self._moving):
                try:
                    await self._look(sandbox_id)
                except CasuloError as error:
                    _log.warning("vault.rotation_failed", sandbox=sandbox_id, code=error.code)
                except Exception:  # one sandbox must not keep the others from their new values
                    _log.exception("vault.rotation_failed", sandbox=sandbox_id)

    async def _look(self, sandbox_id: str) -> None:
        runtime, held, before = self._moving[sandbox_id]
        told = await self._told(held)
        if told == before or runtime.egress is None:
            return
        async with self._context.locks.hold(sandbox_id):
            if self._moving.get(sandbox_id) != (runtime, held, before) or told is None:
                return  # it was changed, or went, meanwhile
            if await self._context.store.get(sandbox_id) is None:
                del self._moving[sandbox_id]
                return
            await self._tell(sandbox_id, runtime, told)
            self._moving[sandbox_id] = (runtime, held, told)
            _log.info("vault.rotated", sandbox=sandbox_id)

    async def _change(
        self,
        sandbox_id: str,
        change: Callable[[Vault | None], Vault | None],
        given: tuple[Credential, ...],
        caller: Caller,
    ) -> Vault | None:
        work = self._apply(sandbox_id, change, given, caller)
        return await self._context.tasks.run(work, f"vault of {sandbox_id}")

    async def _apply(
        self,
        sandbox_id: str,
        change: Callable[[Vault | None], Vault | None],
        given: tuple[Credential, ...],
        caller: Caller,
    ) -> Vault | None:
        async with self._context.locks.hold(sandbox_id):
            sandbox = await self._context.get(sandbox_id)
            policy = _policy_of(sandbox)
            runtime = self._context.runtimes.named(sandbox.runtime)
            held = await self._open(sandbox_id)
            wanted = replace(held, vault=change(held.vault))
            for credential in given:
                self._sources.check(credential.source, caller)
            if wanted.vault is not None:
                check_reachable(wanted.vault, policy)
                await self._check_values(wanted.vault, given)
            await self._arm(sandbox_id, runtime, wanted)
            try:
                await self._seal(sandbox_id, wanted)
            except Exception:  # what is not kept must not hold
                await self._arm(sandbox_id, runtime, held)
                raise
            return wanted.vault

    async def _check_values(self, vault: Vault, given: tuple[Credential, ...]) -> None:
        """Sources that a request brings must work when it comes."""
        placed = _in_headers(vault)
        for credential in given:
            value = await asyncio.to_thread(self._sources.read, credential.source)
            if credential.name in placed and not fits_header(value):
                raise InvalidRequest(
                    f"what the source of credential {credential.name!r} gives cannot be part of a header",
                    code=Code.VAULT_SOURCE,
                )

    async def _provided(self, sandbox: Sandbox) -> _Held:
        """What a new sandbox begins with; one of a snapshot goes on with what that has.

        It also keeps the authority, which files and processes of the snapshot trust already.
        """
        held = _Held(None, None)
        if sandbox.spec.snapshot_id is not None:
            held = await self._open(sandbox.spec.snapshot_id)
        if held.authority is None:
            held = replace(held, authority=authority.make(sandbox.id, self._context.now()))
        await self._seal(sandbox.id, held)
        return held

    async def _open(self, holder: str) -> _Held:
        rows = await self._rows.of(holder)
        opened = {kind: self._keyring.open(row) for kind, row in rows.items()}
        return _Held(
            Authority.load(opened[AUTHORITY]) if AUTHORITY in opened else None,
            vaultkept.load(opened[VAULT]) if VAULT in opened else None,
        )

    async def _seal(self, holder: str, held: _Held) -> None:
        """Write what is there. The first thing that is ever sealed makes the key."""
        if not await self._rows.any():
            self._keyring.make()
        rows: list[Sealed] = []
        if held.authority is not None:
            rows.append(self._keyring.seal(holder, AUTHORITY, 1, held.authority.dump()))
        if held.vault is not None:
            content = vaultkept.dump(held.vault)
            rows.append(self._keyring.seal(holder, VAULT, held.vault.revision, content))
        await self._rows.replace(holder, rows)

    async def _arm(self, sandbox_id: str, runtime: Runtime, held: _Held) -> None:
        told = await self._told(held)
        await self._tell(sandbox_id, runtime, told)
        self._follow(sandbox_id, runtime, held, told)

    def _follow(self, sandbox_id: str, runtime: Runtime, held: _Held, told: dict[str, Any] | None) -> None:
        self._moving.pop(sandbox_id, None)
        if told is not None and held.vault is not None and _moves(held.vault):
            self._moving[sandbox_id] = (runtime, held, told)

    async def _tell(self, sandbox_id: str, runtime: Runtime, told: Mapping[str, Any] | None) -> None:
        assert runtime.egress is not None
        await runtime.egress.arm(sandbox_id, told)

    async def _told(self, held: _Held) -> dict[str, Any] | None:
        """As the egress process is told; None without a vault.

        Requests that need a credential which is unavailable are refused there, and the others go on.
        """
        return None if held.vault is None else await asyncio.to_thread(self._compose, held)

    def _compose(self, held: _Held) -> dict[str, Any]:
        assert held.vault is not None and held.authority is not None
        values = self._values(held.vault)
        return {
            "revision": held.vault.revision,
            "ca": {"certificate": held.authority.certificate, "key": held.authority.key.reveal()},
            "credentials": values,
            "unavailable": sorted(held.vault.credentials.keys() - values.keys()),
            "bindings": [
                {
                    "name": each.name,
                    "match": match_wire(each.match),
                    "auth": auth_wire(each.auth),
                    "redactBodies": each.redact_bodies,
                }
                for each in held.vault.bindings.values()
            ],
            "upstreamRoots": self._roots(),
        }

    def _roots(self) -> str:
        path = self._context.settings.vault.extra_roots
        try:
            return "" if path is None else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Conflict(
                f"[vault] extra_roots, {path}, cannot be read: {error}",
                code=Code.VAULT_FAILED,
                hint="mend it on the server",
            ) from None

    def _values(self, vault: Vault) -> dict[str, str]:
        """Those that can be read, and that can be put where bindings want them."""
        placed = _in_headers(vault)
        found: dict[str, str] = {}
        for credential in vault.credentials.values():
            try:
                value = self._sources.read(credential.source)
            except CasuloError as error:
                _log.error("vault.value_missing", credential=credential.name, error=str(error))
                continue
            if credential.name in placed and not fits_header(value):
                _log.error("vault.value_missing", credential=credential.name, error="no header can hold it")
                continue
            found[credential.name] = value.reveal()
        return found


def _in_headers(vault: Vault) -> frozenset[str]:
    return frozenset(name for binding in vault.bindings.values() for name in binding.auth.in_headers)


def _moves(vault: Vault) -> bool:
    return any(each.source.type in ("file", "exec") for each in vault.credentials.values())


def _policy_of(sandbox: Sandbox) -> NetworkPolicy:
    """The policy under which credentials are given. Only a sandbox that was made for it, and is, has one."""
    if not sandbox.spec.credential_proxy or sandbox.spec.network_policy is None:
        raise NotEnabled(
            f"sandbox {sandbox.id} cannot have a credential vault",
            code=Code.VAULT_NOT_ENABLED,
            hint="create one with a networkPolicy and credentialProxy.enabled",
        )
    if sandbox.status.state in ENDED or sandbox.status.state in (State.PENDING, State.STOPPING):
        raise Conflict(
            f"sandbox {sandbox.id} is {sandbox.status.state}",
            code=Code.SANDBOX_NOT_RUNNING,
            hint="vaults are of running and paused sandboxes",
        )
    return sandbox.spec.network_policy
