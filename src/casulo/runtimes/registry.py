# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The runtimes that this server offers, and the choice among them for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from casulo.model.draft import RUNTIME, Draft, isolation_of, nearest
from casulo.model.errors import Code, InvalidRequest, Unavailable, Unsupported
from casulo.model.sandbox import Isolation
from casulo.runtimes.base import ChangeListener, ExitListener, Runtime, TellsChanges

Factory = Callable[[], Runtime]
"""Makes one runtime, unopened; entry points supply one for each name they know."""


class Registry:
    """Enabled runtimes in order of preference, the default first."""

    def __init__(self, runtimes: Sequence[Runtime]) -> None:
        if not runtimes:
            raise ValueError("a server needs at least one runtime")
        self._all: dict[str, Runtime] = {runtime.name: runtime for runtime in runtimes}
        self._refused: dict[str, Unsupported] = {}
        self._opened: list[Runtime] = []

    @property
    def default(self) -> Runtime:
        """The runtime that serves a request which does not choose."""
        return next(iter(self._all.values()))

    @property
    def all(self) -> Sequence[Runtime]:
        """Every enabled runtime, open or not."""
        return tuple(self._all.values())

    @property
    def opened(self) -> Mapping[str, Runtime]:
        """The runtimes that this host can really use, by name."""
        return {runtime.name: runtime for runtime in self._opened}

    async def open(self, on_exit: ExitListener, on_change: ChangeListener = lambda _: None) -> None:
        """Open all. The default must open; another that cannot is kept with its reason."""
        for runtime in self._all.values():
            if isinstance(runtime, TellsChanges):
                runtime.on_change = on_change
            try:
                await runtime.open(on_exit)
            except Unsupported as reason:
                if runtime is self.default:
                    raise
                self._refused[runtime.name] = reason
            else:
                self._opened.append(runtime)

    async def close(self) -> None:
        """Close all that were opened, last first."""
        while self._opened:
            await self._opened.pop().close()

    def named(self, name: str) -> Runtime:
        """The runtime that holds an existing sandbox; Unavailable when this server lacks it now."""
        for runtime in self._opened:
            if runtime.name == name:
                return runtime
        raise Unavailable(
            f"the runtime {name!r} of this sandbox is not available",
            code=Code.NOT_SUPPORTED,
            hint="enable it again in [runtime] enabled and restart the server",
            retry_after=30,
        )

    def pick(self, draft: Draft) -> Runtime:
        """The runtime for a new sandbox; Unsupported says what is missing, before anything happens."""
        isolation = isolation_of(draft)
        wanted = draft.extensions.get(RUNTIME)
        candidates = self._opened if wanted is None else [self._chosen(wanted)]
        if isolation is Isolation.AUTO:
            return candidates[0]
        for runtime in candidates:
            if isolation in runtime.capabilities.isolations:
                return runtime
        raise self._too_weak(isolation, candidates)

    def _chosen(self, name: str) -> Runtime:
        if name in self._refused:
            raise self._refused[name]
        if name not in self.opened:
            raise InvalidRequest(
                f"extension {RUNTIME}: this server offers no runtime {name!r}",
                code=Code.INVALID_PARAMETER,
                hint=nearest(name, self.opened),
            )
        return self.opened[name]

    def _too_weak(self, isolation: Isolation, candidates: Sequence[Runtime]) -> Unsupported:
        feature = f"isolation.{isolation}"
        reasons = [r.capabilities.missing[feature] for r in candidates if feature in r.capabilities.missing]
        reasons += [f"{name}: {reason}" for name, reason in self._refused.items()]
        offered = sorted({str(i) for r in candidates for i in r.capabilities.isolations})
        return Unsupported(
            f"isolation {isolation} is not available here; offered: {', '.join(offered)}",
            code=Code.ISOLATION_UNAVAILABLE,
            hint="; ".join(reasons) or "`osb doctor` says what this host lacks for it",
        )


def build(enabled: Sequence[str], default: str, factories: Mapping[str, Factory]) -> Registry:
    """The registry of `enabled` runtimes with `default` preferred.

    InvalidRequest names a runtime for which there is no factory.
    """
    for name in enabled:
        if name not in factories:
            raise InvalidRequest(
                f"[runtime] enabled: no runtime is called {name!r}",
                code=Code.INVALID_PARAMETER,
                hint=nearest(name, factories),
            )
    order = [default, *(name for name in enabled if name != default)]
    return Registry([factories[name]() for name in order])
