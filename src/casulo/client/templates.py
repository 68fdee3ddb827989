# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Templates: sandboxes that were started, warmed up and kept, as the beginning of others.

A template is a snapshot with a name of its own. On microVMs it holds memory: what was imported and
computed while warming up is there at once in every sandbox made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from casulo.client.records import parse
from casulo.client.snapshots import DEFAULT_TIMEOUT, Snapshot
from casulo.client.transport import Answer
from casulo.model.errors import Code, InvalidRequest, NotFound, RuntimeFailure

if TYPE_CHECKING:
    from casulo.client.lifecycle import AsyncClient
    from casulo.client.sandbox import AsyncSandbox

PREFIX = "template/"
TEMPLATE_ID = "tpl_"
"""Begins the ids of the templates that the server itself makes."""

_PAGE = 200
_BUILD_LIFETIME = 3600
_PRUNE_SECONDS = 300.0
_READY = "until {probe}; do sleep 0.1; done"


@dataclass(frozen=True)
class Template:
    """One template; `id` is that of its snapshot."""

    name: str
    id: str
    state: str
    created_at: datetime

    @staticmethod
    def of(snapshot: Snapshot) -> Template:
        """The template that a snapshot is."""
        return Template(snapshot.name.removeprefix(PREFIX), snapshot.id, snapshot.state, snapshot.created_at)


@dataclass(frozen=True)
class PrunedItem:
    """One thing that pruning looked at; `used_by` are sandboxes."""

    kind: str
    id: str
    name: str
    reason: str
    bytes: int
    used_by: tuple[str, ...]

    @staticmethod
    def read(data: Any) -> PrunedItem:
        """From the wire."""
        name, size, using = data.get("name") or "", data.get("bytes") or 0, data.get("usedBy") or ()
        return PrunedItem(
            str(data["kind"]), str(data["id"]), str(name), str(data["reason"]), int(size), tuple(using)
        )


@dataclass(frozen=True)
class Pruned:
    """What is gone, or would be, and what was left on purpose."""

    removed: tuple[PrunedItem, ...]
    kept: tuple[PrunedItem, ...]

    @staticmethod
    def read(data: Any) -> Pruned:
        """From the wire."""
        return Pruned(*(tuple(map(PrunedItem.read, data[name])) for name in ("removed", "kept")))


class AsyncTemplates:
    """The templates of one server. Use one with `Sandbox.create(template=…)`."""

    def __init__(self, client: AsyncClient, call: Callable[..., Awaitable[Answer]]) -> None:
        self._client = client
        self._call = call

    async def build(
        self,
        name: str,
        image: str = "host",
        *,
        warm: Sequence[str] = (),
        ready: str | None = None,
        entrypoint: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
        isolation: str | None = "microvm",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Template:
        """Start a sandbox, wait until the command `ready` succeeds, run the `warm` commands, and keep it.

        A template of the same name is replaced once the new one is there. A warm-up command that
        fails is a RuntimeFailure, and nothing is kept.
        """
        from casulo.client.sandbox import AsyncSandbox  # which imports this module, by way of the client

        _check(name)
        older = await self._all(name)
        box = await AsyncSandbox.create(
            image,
            entrypoint=entrypoint,
            env=env,
            resources=resources,
            isolation=isolation,
            timeout=_BUILD_LIFETIME,
            ready_timeout=timeout,
            client=self._client,
        )
        try:
            commands = [_READY.format(probe=ready)] if ready else []
            for command in (*commands, *warm):
                await _succeed(box, command, timeout)
            made = Template.of(await box.snapshot(PREFIX + name, timeout=timeout))
        finally:
            await box.kill()
        for snapshot in older:
            await self._client.snapshots.delete(snapshot.id)
        return made

    async def list(self) -> tuple[Template, ...]:
        """All of them, newest first."""
        found: Sequence[Snapshot] = ()
        page, more = 1, True
        while more:
            listed = await self._client.snapshots.list(page=page, page_size=_PAGE)
            found = (*found, *(snapshot for snapshot in listed if snapshot.name.startswith(PREFIX)))
            page, more = page + 1, listed.has_next_page
        return tuple(map(Template.of, found))

    async def get(self, name: str) -> Template:
        """The newest of this name that is ready; NotFound when there is none."""
        for snapshot in await self._all(name):
            if snapshot.state == "Ready":
                return Template.of(snapshot)
        raise NotFound(
            f"there is no template {name!r}",
            code=Code.SNAPSHOT_NOT_FOUND,
            hint="`osb template ls` lists them, `osb template build` makes one",
        )

    async def delete(self, name: str) -> None:
        """Remove it; sandboxes made from it go on. NotFound when there is none."""
        found = await self._all(name)
        if not found:
            await self.get(name)
        for snapshot in found:
            await self._client.snapshots.delete(snapshot.id)

    async def prune(self, *, unused: bool = False, dry_run: bool = False) -> Pruned:
        """Remove those that failed or are outdated, with `unused` all that no sandbox was made of.

        For an operator also what the server's runtimes keep by themselves. `dry_run` only says what would go.
        """
        body = {"unused": unused, "dryRun": dry_run}
        answer = await self._call("POST", "/templates/prune", content=body, timeout=_PRUNE_SECONDS)
        return parse(Pruned.read, answer.json())

    async def _all(self, name: str) -> Sequence[Snapshot]:
        return (await self._client.snapshots.list(name=PREFIX + name, page_size=_PAGE)).items


async def _succeed(box: AsyncSandbox, command: str, timeout: float) -> None:
    done = await box.commands.run(command, timeout=timeout)
    if done.exit_code != 0:
        said = (done.stderr or done.stdout)[-500:]
        raise RuntimeFailure(f"warming up failed: {command!r} ended with {done.exit_code}: {said}")


def _check(name: str) -> None:
    if not name or len(name) > 200 or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise InvalidRequest(
            f"template: {name!r} is no name for one",
            code=Code.INVALID_PARAMETER,
            hint="use letters, digits, '-', '_' and '.'",
        )
