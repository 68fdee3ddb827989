# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pools: sandboxes that are parked before anybody asks, and handed out once.

A member's id is the id of the sandbox that it becomes, so nothing on the host is renamed. No member
is recorded: until it is handed out it is nobody's, and it ends with the server that parked it; what a
killed server leaves of it are traces without a row, which reconciliation removes. From the moment
that a row names it, it is a sandbox in its start like any other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from casulo.control.admission import Admission
from casulo.control.context import Context
from casulo.control.demand import Demand
from casulo.control.events import Event, Kind
from casulo.control.members import Member, Members
from casulo.control.settings import PoolsSettings
from casulo.model.draft import POOL_REF, Draft, complete, isolation_of
from casulo.model.errors import CasuloError, Code, Conflict, Unavailable, Unsupported
from casulo.model.pool import Capacity, Pool, PoolStatus, Template, check_name, drawn, pool_not_found, shape
from casulo.model.sandbox import Sandbox, Spec
from casulo.runtimes.base import Parking, Parks, Runtime

_OWNER = "pool"
_IMPLICIT = "(most used)"
_LOOK_SECONDS = 5.0
_YIELD_SECONDS = 0.05
_QUIET_SECONDS = 0.2
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 60.0
_RETRY_AFTER_SECONDS = 1.0
_log = structlog.get_logger(__name__)


@dataclass
class _Line:
    """What is kept for one pool besides its members."""

    pool: Pool
    runtime: Runtime
    spec: Spec
    in_use: set[str] = field(default_factory=set)
    pause: float = 0.0
    not_before: float = 0.0
    trouble: str = ""


class Pools:
    """All pools of a server. Everything but the keeper happens on the event loop in one go."""

    def __init__(self, context: Context, admission: Admission, settings: PoolsSettings) -> None:
        self._context = context
        self._admission = admission
        self._settings = settings
        self._members = Members()
        self._lines: dict[str, _Line] = {}
        self._demand = Demand()
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self.hits = 0
        self.misses = 0

    async def open(self) -> None:
        """Begin to fill the pools of the store and of the configuration."""
        stored = await self._context.store.pools.all()
        for pool in (*stored, *self._configured()):
            self._adopt_line(pool)
        for sandbox in await self._context.store.all():
            self._note_use(sandbox)
        self._context.events.listen(self._note)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="pools")

    async def refresh(self) -> None:
        """See what other servers of the same store did to its pools."""
        stored = {pool.name: pool for pool in await self._context.store.pools.all()}
        for name, kept in list(self._lines.items()):
            if name not in stored and not kept.pool.fixed and name != _IMPLICIT:
                del self._lines[name]
                self._begin_to_give_up(self._members.of(name))
        for pool in stored.values():
            line = self._lines.get(pool.name)
            if line is None or line.pool.template != pool.template:
                self._adopt_line(pool)
            elif not line.pool.fixed:
                line.pool = pool
        self._changed.set()

    def _adopt_line(self, pool: Pool) -> None:
        try:
            self._lines[pool.name] = self._line(pool)
        except CasuloError as error:  # a pool that cannot be has no say in what else this server does
            _log.error("pool.unusable", pool=pool.name, error=str(error))

    async def close(self) -> None:
        """Stop filling, and give up all members."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._give_up(self._members.all())

    def resolve(self, draft: Draft) -> tuple[Draft, Pool | None]:
        """A request for a sandbox of a pool, completed with what that one says."""
        name = draft.extensions.get(POOL_REF)
        if name is None:
            return draft, None
        pool = self.get(name)
        return drawn(draft, pool, self._lines[name].spec.resources), pool

    def take(self, runtime: Runtime, spec: Spec, pool: Pool | None) -> Member | None:
        """A member that can become a sandbox of `spec`; nobody else gets it. None: start one.

        Unavailable when the pool that was named has none and does not want one started.
        """
        if not self._lines and not self._settings.implicit:
            return None
        if not isinstance(runtime, Parks) or not runtime.parking or not _can(runtime.parking, spec):
            return None
        form = _shape(runtime, spec)
        if self._settings.implicit:
            self._demand.note(runtime.name, form)
        line = pool.name if pool else None
        found, spoiled = self._members.take(runtime.name, form, spec, line, self._ready)
        self._begin_to_give_up(spoiled)
        self._taken_at = self._now()
        if found is None and pool is not None:
            self._refuse_if_full(pool)
        self.hits, self.misses = self.hits + bool(found), self.misses + (not found)
        return found

    def give_back(self, member: Member) -> None:
        """It was taken, and nothing was done with it."""
        self._members.add(member)

    async def create(self, name: str, template: Template, capacity: Capacity, refuses: bool = False) -> Pool:
        """Keep a new pool, also after a restart."""
        pool = Pool(check_name(name), template, capacity, self._context.now(), refuses=refuses)
        if name in self._lines:
            raise _exists(name)
        line = self._line(pool)
        if not await self._context.store.pools.add(pool):
            raise _exists(name)
        self._lines[name] = line
        self._changed.set()
        return pool

    async def change(self, name: str, capacity: Capacity) -> Pool:
        """Another size. Members in use are not touched."""
        line = self._changeable(name)
        pool = await self._context.store.pools.resize(name, capacity)
        if pool is None:  # deleted meanwhile
            raise pool_not_found(name)
        line.pool = pool
        self._changed.set()
        return pool

    async def delete(self, name: str) -> None:
        """No more members. Sandboxes that came from it stay."""
        self._changeable(name)
        await self._context.store.pools.remove(name)
        self._lines.pop(name, None)
        self._changed.set()  # a member that is just being started goes too
        await self._give_up(self._members.of(name))

    def get(self, name: str) -> Pool:
        """The pool, or NotFound."""
        if name not in self._lines:
            raise pool_not_found(name)
        return self._lines[name].pool

    def list(self) -> list[Pool]:
        """All of them."""
        return [line.pool for line in self._lines.values() if line.pool.name != _IMPLICIT]

    def status(self, name: str) -> PoolStatus:
        """How a pool is."""
        self.get(name)
        line = self._lines[name]
        return PoolStatus(len(self._members.of(name)), len(line.in_use), line.trouble)

    def _configured(self) -> Iterable[Pool]:
        for name, wanted in self._settings.named.items():
            yield wanted.pool(name, self._context.now())

    def _line(self, pool: Pool) -> _Line:
        """A pool with what its template comes to on this host; refused here, if it cannot be."""
        draft = pool.template.draft()
        runtime = self._context.runtimes.pick(draft)
        isolation = runtime.capabilities.chosen(isolation_of(draft))
        able = runtime.capabilities.of(isolation)
        defaults = self._context.settings.defaults
        asked = complete(draft, defaults, features=able.features, missing=able.missing)
        spec = replace(asked, isolation=isolation)
        runtime.check(spec)
        _parking(runtime, spec)
        return _Line(pool, runtime, spec)

    def _changeable(self, name: str) -> _Line:
        if self.get(name).fixed:
            raise Conflict(
                f"the pool {name!r} is in the server's configuration",
                code=Code.POOL_FIXED,
                hint="change it there, and restart the server",
            )
        return self._lines[name]

    def _refuse_if_full(self, pool: Pool) -> None:
        full = len(self._lines[pool.name].in_use) >= pool.capacity.pool_max
        if full or pool.refuses:
            raise Unavailable(
                f"the pool {pool.name!r} has no sandbox left",
                code=Code.POOL_CAPACITY_EXHAUSTED,
                hint="ask again later, or have the pool enlarged",
                retry_after=_RETRY_AFTER_SECONDS,
            )

    def _note(self, event: Event) -> None:
        if event.kind is Kind.RUNNING:
            self._note_use(event.sandbox)
        elif event.kind is Kind.REMOVED:
            line = self._lines.get(event.sandbox.spec.extensions.get(POOL_REF, ""))
            if line:
                line.in_use.discard(event.sandbox.id)
                self._changed.set()

    def _note_use(self, sandbox: Sandbox) -> None:
        line = self._lines.get(sandbox.spec.extensions.get(POOL_REF, ""))
        if line:
            line.in_use.add(sandbox.id)

    async def _keep(self) -> None:
        """Supervisor: look at every pool when something changed, and every few seconds."""
        while True:
            self._changed.clear()
            try:
                await self._round()
            except Exception:  # the edge of a supervisor: pools must outlive any failure
                _log.exception("pools.round_failed")
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _round(self) -> None:
        self._choose_implicit()
        oldest = asyncio.get_running_loop().time() - self._settings.max_age_seconds
        spoiled = [m for m in self._members.all() if m.since < oldest or not self._wanted(m)]
        await self._give_up(spoiled)
        for line in list(self._lines.values()):
            await self._level(line)

    def _choose_implicit(self) -> None:
        """The shape that was asked for most lately gets a pool of its own, where that is wanted."""
        size = self._settings.implicit
        most = self._demand.changed() if size else None
        if most is not None:
            runtime, form = most
            pool = Pool(_IMPLICIT, Template(form.image), Capacity(size, size), self._context.now())
            self._lines[_IMPLICIT] = _Line(pool, self._context.runtimes.named(runtime), form)

    async def _level(self, line: _Line) -> None:
        """Start or give up members of one pool, one at a time and behind everybody who waits."""
        if line.not_before > self._now():
            return
        missing = self._missing(line)
        if missing < 0:
            await self._give_up(self._members.of(line.pool.name)[:-missing])
        for _ in range(missing):
            current = self._lines.get(line.pool.name) is line
            if not current or self._room(line) <= 0 or not await self._add(line):
                return

    def _missing(self, line: _Line) -> int:
        return line.pool.capacity.missing(len(self._members.of(line.pool.name)), len(line.in_use))

    def _room(self, line: _Line) -> int:
        """How many more members the pool may have, as its size is now."""
        ready, capacity = len(self._members.of(line.pool.name)), line.pool.capacity
        return min(capacity.buffer_max - ready, capacity.pool_max - ready - len(line.in_use))

    async def _add(self, line: _Line) -> bool:
        while any(self._admission.waiting().values()) or self._disturbs(line):
            await asyncio.sleep(_YIELD_SECONDS)
        try:
            member = await self._park(line)
        except Exception as error:  # whatever it was, the next try comes later
            line.pause = min(max(line.pause * 2, _FIRST_PAUSE_SECONDS), _LAST_PAUSE_SECONDS)
            line.not_before = self._now() + line.pause
            line.trouble = str(error) or type(error).__name__
            _log.warning("pool.park_failed", pool=line.pool.name, error=line.trouble, seconds=line.pause)
            return False
        line.pause, line.trouble = 0.0, ""
        self._members.add(member)
        return True

    def _disturbs(self, line: _Line) -> bool:
        """Whether starting a member now would take the processor from who just got one, without need."""
        lately = self._now() - self._taken_at < _QUIET_SECONDS
        return lately and bool(self._members.of(line.pool.name))

    async def _park(self, line: _Line) -> Member:
        member_id, runtime = str(uuid.uuid4()), line.runtime
        form = _shape(runtime, line.spec)
        async with self._admission.turn(runtime.name, _OWNER, _say_nothing):
            try:
                await runtime.provide(member_id, line.spec)
                await _parking(runtime, line.spec).park(member_id, line.spec)
            except BaseException:
                await asyncio.shield(runtime.destroy(member_id, None, 0))
                raise
        return Member(
            member_id, line.pool.name, runtime.name, form, line.pool.template.entrypoint or (), self._now()
        )

    def _begin_to_give_up(self, members: Sequence[Member]) -> None:
        for member in members:
            self._context.tasks.spawn(self._give_up([member]), f"remove member {member.id}")
        self._changed.set()

    async def _give_up(self, members: Sequence[Member]) -> None:
        for member in members:
            self._members.remove(member.id)
            runtime = self._context.runtimes.named(member.runtime)
            try:
                await runtime.destroy(member.id, None, 0)
            except CasuloError as error:  # its traces have no row: the next start removes them
                _log.error("pool.member_not_removed", member=member.id, error=str(error))

    def _wanted(self, member: Member) -> bool:
        """Whether it works, and is still what its pool is made of."""
        line = self._lines.get(member.line)
        return line is not None and member.shape == _shape(line.runtime, line.spec) and self._ready(member)

    def _ready(self, member: Member) -> bool:
        return _parking(self._context.runtimes.named(member.runtime), member.shape).ready(member.id)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _exists(name: str) -> Conflict:
    return Conflict(f"there is a pool called {name!r} already", code=Code.POOL_EXISTS)


async def _say_nothing(reason: str, message: str) -> None:
    """Nobody waits for a member."""


def _shape(runtime: Runtime, spec: Spec) -> Spec:
    return shape(spec, runtime.capabilities.chosen(spec.isolation))


def _can(parking: Parking, spec: Spec) -> bool:
    """Volumes are mounted when a container starts, and are of who asks for them."""
    return not spec.volumes and parking.can(spec)


def _parking(runtime: Runtime, spec: Spec) -> Parking:
    if isinstance(runtime, Parks) and runtime.parking and _can(runtime.parking, spec):
        return runtime.parking
    raise Unsupported(
        f"the runtime {runtime.name!r} cannot start such sandboxes ahead",
        code=Code.POOL_NOT_SUPPORTED,
        hint="name a runtime that can with the extension casulo.runtime in the pool's template",
    )
