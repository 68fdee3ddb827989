# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The protocol between `control` and a runtime.

A runtime turns a spec into processes and back into nothing. It keeps no intent: the store does.
Everything it leaves on the host has a name derived from the sandbox's id, so that `destroy` works
for a sandbox that was half made by a server that no longer exists.

Optional abilities are objects that a runtime *offers*; an ability that it lacks is None, and
`control` refuses the call before anything happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from casulo.model.credentials import Credentials
from casulo.model.errors import RuntimeFailure
from casulo.model.policy import NetworkPolicy
from casulo.model.pruning import Pruned
from casulo.model.sandbox import Exit, Handle, Isolation, Spec
from casulo.model.snapshot import Change


@dataclass(frozen=True)
class Ability:
    """What a runtime can do with one isolation, and what starts it, for people to read."""

    features: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""
    platform: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can do on this host. `features` uses the dotted names of ARCHITECTURE.md.

    `own` holds the isolations that differ from that; `default` is what a request gets that asks for none.
    """

    isolations: frozenset[Isolation]
    features: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    """From a feature that is absent to the sentence that says why and how to get it."""
    own: Mapping[Isolation, Ability] = field(default_factory=dict)
    default: Isolation = Isolation.AUTO

    def chosen(self, wanted: Isolation) -> Isolation:
        """The isolation that a request for `wanted` gets."""
        return self.default if wanted is Isolation.AUTO else wanted

    def of(self, wanted: Isolation) -> Ability:
        """What a sandbox can do that asks for `wanted`."""
        return self.own.get(self.chosen(wanted)) or Ability(self.features, self.missing)


@dataclass(frozen=True)
class Reality:
    """What a runtime sees of a sandbox: alive (perhaps frozen), or ended (perhaps with an exit)."""

    alive: bool
    frozen: bool = False
    exit: Exit | None = None


MOST_CHANGES = 100_000
"""Changes that are told of two snapshots; who needs more compares the files themselves."""

ExitListener = Callable[[str, Exit | None], None]
"""Called on the event loop with the sandbox's id when its processes ended by themselves."""


ChangeListener = Callable[[str], None]
"""Called on the event loop with a sandbox that may not be what it was: somebody else had a hand in it."""


@runtime_checkable
class TellsChanges(Protocol):
    """A runtime whose sandboxes others may freeze and thaw. `on_change` is set before it is opened."""

    on_change: ChangeListener


class Pause(Protocol):
    """Freezing in memory: the processes keep everything but get no CPU time."""

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Freeze; returns when every process is frozen. Raises RuntimeFailure."""

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Thaw; returns when the daemon answers again. Raises RuntimeFailure."""


class Deaf(RuntimeFailure):
    """A parked member did not take its orders: it ran nothing of anybody, so another start may be tried."""


class Parking(Protocol):
    """Starting a sandbox up to where only its caller's wishes are missing, and going on from there.

    A parked member runs its daemon and nothing else. It ends by itself when the server that parked it
    is gone, and `destroy` removes it like any half-made sandbox.
    """

    def can(self, spec: Spec) -> bool:
        """Whether a sandbox of `spec` can be parked."""

    async def park(self, sandbox_id: str, spec: Spec) -> None:
        """Begin what was provided. As with `create`, an error leaves nothing behind."""

    async def adopt(self, sandbox_id: str, spec: Spec) -> Handle:
        """Finish it with the caller's own entrypoint, environment and hooks, as `create` would.

        `spec` may differ from the one that was parked in nothing else. Deaf when it did not answer;
        on any error the member is of no use any more, and is left for `destroy`.
        """

    def ready(self, sandbox_id: str) -> bool:
        """Whether a parked member still waits, as far as can be told without asking it."""


class Snapshots(Protocol):
    """Keeping a sandbox's files for sandboxes to come.

    Whatever a snapshot leaves on the host has a name derived from the snapshot's id, as sandboxes do,
    and lives on when its source is gone. `provide` and `create` find it by `spec.snapshot_id`.
    """

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Keep the files of a running sandbox, which stands still for as short as can be.

        On any error, cancellation included, everything is undone before the error leaves.
        """

    async def remove(self, snapshot_id: str) -> None:
        """Remove every trace of it. Idempotent. Sandboxes made from it keep what they need."""

    async def list(self) -> set[str]:
        """Ids of all snapshots that have any trace on this host and belong to this server."""


@runtime_checkable
class Compares(Protocol):
    """Snapshots whose files can be compared."""

    async def diff(self, old: str, new: str) -> Sequence[Change]:
        """What changed from one to the other, by path, at most `MOST_CHANGES`. Conflict when they have
        different images."""


@runtime_checkable
class Ages(Protocol):
    """Snapshots that may become of no use on this host."""

    async def outdated(self, snapshot_id: str) -> str:
        """Why none can be restored from it here any more; empty when one can."""


@runtime_checkable
class Prunes(Protocol):
    """A runtime that makes things ahead, and keeps them until somebody wants the room."""

    async def prune(self, *, unused: bool, dry: bool) -> Pruned:
        """Remove what is outdated, with `unused` all that nothing is made of now; never what is needed."""


@runtime_checkable
class Parks(Protocol):
    """A runtime that can start sandboxes ahead."""

    @property
    def parking(self) -> Parking | None:
        """The ability; valid after `open`."""


@runtime_checkable
class Injects(Protocol):
    """A runtime that gives credentials to requests of its sandboxes."""

    def foretell(self, vaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Before `open`: what `Egress.arm` was told of the sandboxes that an earlier server left."""


@runtime_checkable
class KeepsOutput(Protocol):
    """A runtime that has the entrypoint's output elsewhere than in `entrypoint.log` in the data directory."""

    async def output(self, sandbox_id: str, lines: int, since: datetime | None = None) -> str:
        """Its last `lines` lines, or of what came after `since`; empty when there is no such sandbox."""


class Egress(Protocol):
    """Enforcing network policies. `create` puts a sandbox under `spec.network_policy` by itself."""

    async def apply(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Put a live sandbox under another policy, atomically; an error leaves the one before.

        Nothing happens when the policy is the one that holds already.
        """

    async def arm(self, sandbox_id: str, vault: Mapping[str, Any] | None) -> None:
        """What a sandbox's requests are given from the next one on, None for nothing.

        An error leaves what was. For a sandbox that is not there yet it is kept until it is, so that it holds
        from the first request.
        """

    async def state(self, sandbox_id: str) -> dict[str, Any]:
        """Counts and the last failure. NotFound for a sandbox without a policy."""

    async def seen(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The destinations that it was allowed to reach, with counts."""

    async def test(self, sandbox_id: str, url: str, method: str) -> dict[str, Any]:
        """What would become of a request, and which rule decides."""

    def log(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
        """Lines of the audit log; with `follow` also those to come. Empty lines say that it goes on."""


class Runtime(Protocol):
    """One way to run sandboxes. `control` owns it: opens it once, calls it, closes it."""

    name: str

    @property
    def snapshots(self) -> Snapshots | None:
        """The ability to take snapshots, if there is one."""

    @property
    def egress(self) -> Egress | None:
        """The ability to enforce network policies, if there is one."""

    @property
    def pause(self) -> Pause | None:
        """The ability to pause, if there is one."""

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `open`."""

    async def open(self, on_exit: ExitListener) -> None:
        """Prepare the host. Raises Unsupported naming what the host lacks and the remedy."""

    async def close(self) -> None:
        """Give back what is not part of a sandbox. Sandboxes keep running."""

    def check(self, spec: Spec) -> None:
        """Refuse, without side effects, a spec that `create` could not honour in full."""

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Bring the image here and keep it from being removed until `destroy`.

        This may take as long as a registry needs, so no other start waits for it. Raises NotFound,
        Unsupported or InvalidRequest where the image is not to be had or cannot run here.
        """

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        """Start what was provided; returns when the daemon answers and the entrypoint was started.

        On any error, cancellation included, everything is undone before the error leaves.
        """

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop (TERM, then KILL after the grace) and remove every trace. Idempotent.

        `handle` is None when creation did not finish. Returns how the entrypoint ended, if known.
        """

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        """The truth about one sandbox; also (re)starts watching it for its end."""

    async def list(self) -> set[str]:
        """Ids of all sandboxes that have any trace on this host and belong to this server."""
