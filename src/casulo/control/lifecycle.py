# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The lifecycle service: everything that the API may ask about a sandbox."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from casulo.control.context import Clock, Context, utc_now
from casulo.control.events import Events
from casulo.control.expiry import Expiry
from casulo.control.forks import Forks, Wish
from casulo.control.history import History
from casulo.control.idempotency import check_key, key_conflict, key_of, not_undone
from casulo.control.idles import Idles
from casulo.control.keys import Keys
from casulo.control.membership import Membership
from casulo.control.pauses import Pauses
from casulo.control.policies import Policies
from casulo.control.pools import Pools
from casulo.control.pruning import Pruning
from casulo.control.reconcile import Reconciler
from casulo.control.renewals import Renewals
from casulo.control.sealing import Keyring
from casulo.control.settings import ControlSettings
from casulo.control.snapshots import Snapshots
from casulo.control.sources import Sources
from casulo.control.starts import Claimed, Order, Starts
from casulo.control.stops import Stops
from casulo.control.templates import Templates
from casulo.control.transitions import Reason
from casulo.control.vaults import Vaults
from casulo.control.vaultsettings import VaultSettings
from casulo.model import labels, volumes
from casulo.model.draft import RUNTIME, Draft, complete, ends_at, isolation_of, resumes_on_access
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest, NotFound
from casulo.model.keys import OPERATOR, Caller
from casulo.model.sandbox import Exit, Handle, Sandbox, Spec
from casulo.model.snapshot import restored, snapshot_not_found
from casulo.model.states import ENDED, State, Status
from casulo.model.template import drawn, is_template, template_not_found
from casulo.runtimes.base import Reality, Runtime
from casulo.runtimes.registry import Registry
from casulo.store.outbox import Outbox
from casulo.store.query import Claim, Page, Query
from casulo.store.store import Store

_CLOSE_SECONDS = 10.0
_ASLEEP = (State.PAUSING, State.PAUSED, State.RESUMING)


class Lifecycle:
    """Create, look at, change and end sandboxes. One object per server; errors are typed.

    `snapshots` is the same for snapshots.
    The caller opens the store before and closes it after.
    """

    def __init__(
        self,
        store: Store,
        runtimes: Registry,
        settings: ControlSettings,
        *,
        now: Clock = utc_now,
        url: str = "",
    ) -> None:
        self._context = Context(store, runtimes, settings, now)
        self.keys = Keys(store, now)
        keyring = Keyring(settings.vault, settings.data_dir)
        self.vaults = Vaults(self._context, keyring, Sources(settings.vault))
        self._stops = Stops(self._context, self.vaults)
        self._starts = Starts(self._context, self._stops, self.vaults)
        self.policies = Policies(self._context, self.vaults)
        self.history = History(self._context.events)
        self._reconciler = Reconciler(self._context, self._starts, self._stops)
        self._pauses = Pauses(self._context, self._reconciler.doubt)
        self.snapshots = Snapshots(self._context, self.vaults)
        self._forks = Forks(self._context, self.snapshots, self._stops, self.create)
        self.templates = Templates(self._context, self.snapshots, self._stops)
        self.pruning = Pruning(self._context, self.snapshots)
        self.pools = Pools(self._context, self._starts.admission, settings.pools)
        self._idles = Idles(self._context, self._pauses.pause)
        chores = (self._idles.look, self._stops.retry, self._reconciler.look_again, self.snapshots.retry)
        self._expiry = Expiry(self._context, self._stops, chores)
        self._renewals = Renewals(self._context, self._expiry)
        beats = (self.keys.refresh, self.pools.refresh)
        self.membership = Membership(store, url, settings.store.lease_seconds, beats)
        self._context.acts = lambda: self.membership.acts
        self._supervisors: list[asyncio.Task[None]] = []

    @property
    def vault_settings(self) -> VaultSettings:
        """How credentials may be sent here."""
        return self._context.settings.vault

    @property
    def runtimes(self) -> Registry:
        """The runtimes behind this service, for those who report on them."""
        return self._context.runtimes

    async def open(self) -> None:
        """Open the runtimes, make store and reality agree, start expiry.

        Unsupported says why the default runtime cannot work on this host.
        """
        await self.membership.open()
        await self.vaults.open()
        await self._context.runtimes.open(self._exited, self._reconciler.changed)
        await self.keys.refresh()
        await self.snapshots.recover()
        await self._reconciler.run()
        await self.templates.recover()
        await self._idles.open()
        await self.pools.open()
        loop = asyncio.get_running_loop()
        self._supervisors = [
            loop.create_task(self._expiry.run(), name="expiry"),
            loop.create_task(self.vaults.run(), name="vaults"),
        ]

    async def close(self) -> None:
        """Stop expiry, undo creates in flight, finish removals, close runtimes. Sandboxes keep running."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        if self._supervisors:
            await asyncio.wait(self._supervisors)
        for sandbox_id in list(self._context.starting):
            self._stops.begin(sandbox_id, Reason.SERVER_STOPPED)
        await self.pools.close()
        await self._context.tasks.close(_CLOSE_SECONDS + self._context.settings.sandbox.stop_grace_seconds)
        await self._context.runtimes.close()
        await self.membership.close()

    @property
    def events(self) -> Events:
        """What happens to sandboxes, for those who want to be told."""
        return self._context.events

    @property
    def outbox(self) -> Outbox:
        """Where messages wait that are still to be delivered."""
        return self._context.store.outbox

    @property
    def here(self) -> str:
        """This server's name among those that share its store; empty where there is only one."""
        return self._context.store.here

    def require_here(self, sandbox: Sandbox) -> None:
        """Conflict for a sandbox on another server's machine."""
        self._context.require_here(sandbox.server, f"sandbox {sandbox.id}")

    async def place_of(self, kind: str, item_id: str, caller: Caller) -> str | None:
        """Which server has one of a kind (its plural, as in paths) on its machine; None: not `caller`'s."""
        rows = self._context.store if kind == "sandboxes" else self._context.store.snapshots
        found = await rows.get(item_id)
        return None if found is None or not caller.sees(found.owner) else found.server

    async def counts(self) -> dict[tuple[str, str], int]:
        """How many sandboxes there are, by runtime and state."""
        return await self._context.store.counts()

    def queued(self) -> dict[str, int]:
        """How many starts wait for their turn, by runtime."""
        return self._starts.admission.waiting()

    async def settled(self) -> None:
        """Wait until no background work is left: starts, removals, ends that were noticed."""
        await self._context.tasks.settled()

    async def create(
        self,
        draft: Draft,
        *,
        idempotency_key: str | None = None,
        request_hash: str = "",
        caller: Caller = OPERATOR,
    ) -> Sandbox:
        """Start a sandbox for `caller` and return it Running.

        Cancelling the call undoes everything, unless an idempotency key was given. With a key, the
        same key and hash give the same sandbox, also concurrently and after a restart; another hash
        is a Conflict (IDEMPOTENCY_CONFLICT).
        """
        if idempotency_key is None:
            return await self._create(draft, None, "", caller)
        check_key(idempotency_key)
        key = key_of(caller, idempotency_key)
        while True:
            try:
                return await self._create(draft, key, request_hash, caller)
            except Claimed:
                claim = await self._context.store.claim(key)
            earlier = claim and await self._earlier(claim, request_hash)
            if earlier:
                return earlier

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox, or NotFound."""
        return await self._context.get(sandbox_id)

    async def list(self, query: Query) -> Page[Sandbox]:
        """One page, newest first."""
        return await self._context.store.list(query)

    async def delete(self, sandbox_id: str) -> None:
        """Remove every trace; returns when done. NotFound when there is none (any more).

        The removal goes on when the caller goes away, and is tried again later when it fails.
        """
        await self._stops.stop(sandbox_id, Reason.DELETED)

    async def patch_metadata(self, sandbox_id: str, changes: Mapping[str, str | None]) -> Sandbox:
        """Merge `changes`, None removes. Checks labels with the patch's own error code."""
        added = {key: value for key, value in changes.items() if value is not None}
        labels.check(added, code=Code.INVALID_METADATA_LABEL)
        for key in changes:
            labels.check_key(key, code=Code.INVALID_METADATA_LABEL)
        return await self._context.update(sandbox_id, lambda found: _merged(found, changes, added))

    async def renew(self, sandbox_id: str, until: datetime) -> datetime:
        """Set the end of life (aware datetime) and return it.

        InvalidRequest (INVALID_EXPIRATION) when not in the future; Conflict (same code) when the
        sandbox has no automatic expiry.
        """
        return await self._renewals.renew(sandbox_id, until)

    async def renew_on_access(self, sandbox_id: str) -> None:
        """A proxied request happened: extend the life of a sandbox that asked for that.

        Cheap to call on every request, and never an error for the request that caused it.
        """
        await self._renewals.accessed(sandbox_id)

    async def pause(self, sandbox_id: str) -> Sandbox:
        """Freeze; returns it Paused. Unsupported when its runtime cannot."""
        return await self._pauses.pause(sandbox_id)

    async def resume(self, sandbox_id: str) -> Sandbox:
        """Thaw; returns it Running."""
        return await self._pauses.resume(sandbox_id)

    async def fork(self, sandbox_id: str, wish: Wish, caller: Caller = OPERATOR) -> tuple[Sandbox, ...]:
        """Children of a running sandbox that begin where it stands, all of them running."""
        return await self._forks.fork(sandbox_id, wish, caller)

    async def endpoint(self, sandbox_id: str, port: int) -> Handle:
        """Where the sandbox's daemon is; `port` is only checked.

        NotFound with ENDPOINT_NOT_READY while it starts, Conflict (SANDBOX_NOT_RUNNING) once it
        ended or is being deleted. A paused one that wants it is resumed before.
        """
        if not 1 <= port <= 65535:
            raise InvalidRequest(
                f"port {port} does not exist", code=Code.INVALID_PORT, hint="ports are 1 to 65535"
            )
        sandbox = await self._context.get(sandbox_id)
        self._idles.reached(sandbox)
        if sandbox.status.state in _ASLEEP and resumes_on_access(sandbox.spec.extensions):
            sandbox = await self._pauses.wake(sandbox)
        return _reachable(sandbox)

    async def _create(self, draft: Draft, key: str | None, request_hash: str, caller: Caller) -> Sandbox:
        try:
            order = await self._order(draft, caller)
        except CasuloError as error:
            if key is not None and await self._context.store.claim(key):
                raise Claimed from error  # it was made when it still could be
            raise
        claim = None if key is None else Claim(key, request_hash, order.sandbox.id)
        created = await self._starts.run(order, claim, caller.limits)
        self._expiry.notice(created.expires_at)
        return created

    async def _order(self, draft: Draft, caller: Caller) -> Order:
        draft, pool = self.pools.resolve(draft)
        runtime, spec, draft = await self.plan(draft, caller)
        member = self.pools.take(runtime, spec, pool)
        sandbox = self._new(spec, draft, runtime, caller.owner)
        if member is None:
            return Order(sandbox, runtime, draft.credentials)
        unused = partial(self.pools.give_back, member)
        return Order(replace(sandbox, id=member.id), runtime, unused=unused)

    async def plan(self, draft: Draft, caller: Caller) -> tuple[Runtime, Spec, Draft]:
        """What a create would do, without doing it; refuses as it would."""
        runtime, draft = await self._sourced(draft, caller)
        isolation = runtime.capabilities.chosen(isolation_of(draft))
        able = runtime.capabilities.of(isolation)
        defaults = self._context.settings.defaults
        asked = complete(draft, defaults, features=able.features, missing=able.missing)
        owned = volumes.owned(asked.volumes, caller.owner)
        spec = replace(asked, isolation=isolation, volumes=owned)
        runtime.check(spec)
        await self.vaults.check_restore(spec)
        return runtime, spec, draft

    async def _sourced(self, draft: Draft, caller: Caller) -> tuple[Runtime, Draft]:
        """Who runs it; a snapshot's sandbox goes to where its files are."""
        if draft.snapshot_id is None:
            return self._context.runtimes.pick(draft), draft
        template = is_template(draft.snapshot_id)
        kept = self.templates if template else self.snapshots
        snapshot = await kept.get(draft.snapshot_id)
        if not caller.sees(snapshot.owner):
            raise template_not_found(snapshot.id) if template else snapshot_not_found(snapshot.id)
        if template:
            draft = drawn(draft, snapshot)
        self._context.require_here(snapshot.server, f"snapshot {snapshot.id}")
        completed = restored(draft, snapshot)
        self._context.runtimes.named(snapshot.runtime)
        there = replace(completed, extensions={**completed.extensions, RUNTIME: snapshot.runtime})
        return self._context.runtimes.pick(there), completed

    def _new(self, spec: Spec, draft: Draft, runtime: Runtime, owner: str) -> Sandbox:
        now = self._context.now()
        return Sandbox(
            id=str(uuid.uuid4()),
            spec=spec,
            status=Status(State.PENDING, Reason.STARTING, "", now),
            created_at=now,
            metadata=dict(draft.metadata),
            expires_at=ends_at(now, spec.timeout_seconds),
            runtime=runtime.name,
            owner=owner,
            server=self._context.store.here,
        )

    async def _earlier(self, claim: Claim, request_hash: str) -> Sandbox | None:
        """The sandbox of a key used before; None when that create failed and the key is free again."""
        if claim.request_hash != request_hash:
            raise key_conflict("was used before with another request")
        launch = self._context.starting.get(claim.sandbox_id)
        if launch:
            return await asyncio.shield(launch.task)
        sandbox = await self._context.store.get(claim.sandbox_id)
        if sandbox and sandbox.status.state is not State.STOPPING:
            return sandbox
        removal = self._stops.running(claim.sandbox_id)
        if removal:
            await asyncio.wait([removal])
        if await self._context.store.claim(claim.key) is None:
            return None
        left = await self._context.store.get(claim.sandbox_id)
        if left is not None and left.handle is None:
            raise not_undone(left)
        raise key_conflict("made a sandbox that was deleted since")

    def _exited(self, sandbox_id: str, exit_: Exit | None) -> None:
        self._context.tasks.spawn(self._note_exit(sandbox_id, exit_), f"exit of {sandbox_id}")

    async def _note_exit(self, sandbox_id: str, exit_: Exit | None) -> None:
        async with self._context.locks.hold(sandbox_id):
            await self._context.settle(sandbox_id, Reality(alive=False, exit=exit_))


def _merged(sandbox: Sandbox, changes: Mapping[str, str | None], added: Mapping[str, str]) -> Sandbox:
    kept = {key: value for key, value in sandbox.metadata.items() if key not in changes}
    return replace(sandbox, metadata={**kept, **added})


def _reachable(sandbox: Sandbox) -> Handle:
    state = sandbox.status.state
    if state is State.PENDING:
        raise NotFound(
            f"sandbox {sandbox.id} is still starting",
            code=Code.ENDPOINT_NOT_READY,
            hint="ask again in a moment",
        )
    if state in ENDED or state is State.STOPPING or sandbox.handle is None:
        raise Conflict(
            f"sandbox {sandbox.id} is {state}: {sandbox.status.message or sandbox.status.reason}",
            code=Code.SANDBOX_NOT_RUNNING,
            hint="create another sandbox",
        )
    return sandbox.handle
