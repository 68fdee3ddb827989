# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The operations of several steps. Each is prepared, cut short while it acts, and then judged.

The judgement of one that was `answered` is strict; of one that was not, either outcome is right, but it
must be one of the two, and everything must go on working.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection

from casulo.client.egress import AsyncEgress
from casulo.client.faults import CONNECTION_FAILED, DISCONNECTED, REQUEST_TIMEOUT, STREAM_BROKEN
from casulo.client.lifecycle import AsyncClient
from casulo.model.errors import CasuloError, NotFound
from support.chaos.ground import KEPT, Ground, until

BROKEN = frozenset({CONNECTION_FAILED, DISCONNECTED, REQUEST_TIMEOUT, STREAM_BROKEN})
BEFORE, AFTER, OTHER = "93.184.215.1", "93.184.215.2", "93.184.215.3"
"""Nobody is sent anything."""

ENDED = ("Failed", "Terminated")


class Operation:
    """One call of one client. `box` is the sandbox that it is about, once there is one."""

    name = ""
    misses: Collection[str] = ()
    """Places that do not have it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.box = ""
        self.answered = False
        self.died = False
        """Its sandbox's daemon was killed."""
        self.refusal: CasuloError | None = None

    async def prepare(self, client: AsyncClient) -> None:
        """What has to be there before."""

    async def act(self, client: AsyncClient) -> None:
        """The call."""
        raise AssertionError("each operation has its own")

    async def run(self) -> None:
        """The call as a client that is ready for the worst."""
        self.ground.note(f"{self.name} {self.box} begins")
        async with self.ground.client() as client:
            try:
                await self.act(client)
                self.answered = True
                self.ground.note(f"{self.name} {self.box} was answered")
            except CasuloError as error:
                self.refusal = error
                self.ground.note(f"{self.name} {self.box} failed: {error.code} {error}")

    async def check(self, client: AsyncClient) -> None:
        """What must be true now, whatever happened."""

    async def judge(self, client: AsyncClient) -> None:
        """Check, then clean up; whatever is left then is a leak."""
        if self.refusal and not self.died:
            assert self.refusal.code in BROKEN, f"{self.name}: {self.refusal.code} {self.refusal}"
        await self.check(client)
        if self.box:
            await self.gone(client)

    async def gone(self, client: AsyncClient) -> None:
        """Delete it; that it is gone already is fine, and afterwards it must be."""
        with contextlib.suppress(NotFound):
            await client.kill(self.box)
        try:
            state = (await client.get(self.box)).state
        except NotFound:
            return
        raise AssertionError(f"{self.name}: {self.box} was deleted and is {state}")

    async def settled(self, client: AsyncClient) -> str:
        """The state once it is none on the way to another."""
        seen: list[str] = []

        async def reached() -> bool:
            seen[:] = [(await client.get(self.box)).state]
            return seen[0] not in ("Pending", "Pausing", "Resuming", "Stopping")

        await until(reached, f"{self.name} of {self.box}")
        return seen[0]

    async def works(self, client: AsyncClient, script: str = "true") -> None:
        """It runs, and `script` succeeds in it. One whose daemon was killed has ended instead."""
        state = await self.settled(client)
        if state == "Paused":
            await client.resume(self.box)
            state = await self.settled(client)
        if self.died:
            return
        told = (await client.get(self.box)).message
        assert state == "Running", f"{self.name}: {self.box} is {state}: {told}"
        code = await self.ground.run(client, self.box, script)
        assert code == 0, f"{self.name}: {script!r} in {self.box} ended with {code}"


class Create(Operation):
    """The key makes that the caller of a lost answer finds its sandbox."""

    name = "create"
    script = KEPT

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.key = secrets.token_hex(8)

    def request(self) -> dict[str, object]:
        return self.ground.body()

    async def act(self, client: AsyncClient) -> None:
        info, _ = await client.create(self.request(), idempotency_key=self.key)
        self.box = info.id

    async def check(self, client: AsyncClient) -> None:
        before = self.box
        if not self.died or not self.answered:
            self.box = (await self._again(client)) or self.box
        if self.answered and not self.died:
            assert before == self.box, f"{self.name}: told {before}, and then {self.box}"
        if self.box:
            self.died = self.died and await self._ended(client)
            await self.works(client, self.script)

    async def _ended(self, client: AsyncClient) -> bool:
        """Whether the kill met this one; an end is known a moment after it."""

        async def ended() -> bool:
            return await self.settled(client) in ENDED

        if not await ended():
            try:
                await self.ground.run(client, self.box, "true")
                return False
            except CasuloError:
                await until(ended, f"{self.name}: the end of {self.box}, which does not answer,")
        return True

    async def _again(self, client: AsyncClient) -> str:
        info, _ = await client.create(self.request(), idempotency_key=self.key)
        return info.id


class HandOut(Create):
    """A create that a pool serves."""

    name = "pool hand-out"
    misses = ("docker", "microvm")

    def request(self) -> dict[str, object]:
        whole = self.ground.body(extensions={"poolRef": "usual"}, env={"WHO": self.key})
        return {key: value for key, value in whole.items() if key != "image"}

    @property
    def script(self) -> str:  # type: ignore[override]
        return f'test "$WHO" = {self.key} && {KEPT}'


class Restore(Create):
    """A create from a snapshot."""

    name = "restore"
    script = 'grep -q kept "$HOME/kept"'
    snapshot = ""

    async def prepare(self, client: AsyncClient) -> None:
        source = await self.ground.made(client)
        assert await self.ground.run(client, source, 'echo kept > "$HOME/kept"') == 0
        self.snapshot = (await client.snapshots.create(source)).id
        await client.kill(source)

    def request(self) -> dict[str, object]:
        whole = self.ground.body(snapshotId=self.snapshot)
        return {key: value for key, value in whole.items() if key != "image"}

    async def judge(self, client: AsyncClient) -> None:
        await super().judge(client)
        await client.snapshots.delete(self.snapshot)


class OnBox(Operation):
    """About a sandbox that is there before."""

    async def prepare(self, client: AsyncClient) -> None:
        self.box = await self.ground.made(client)


class Delete(OnBox):
    """Gone means gone."""

    name = "delete"

    async def act(self, client: AsyncClient) -> None:
        await client.kill(self.box)

    async def check(self, client: AsyncClient) -> None:
        if self.answered:
            try:
                await client.get(self.box)
            except NotFound:
                return
            raise AssertionError(f"{self.box} was deleted and is back")


class Pause(OnBox):
    """Processes stand still or go on; they are never lost."""

    name = "pause"
    wanted = "Paused"

    async def act(self, client: AsyncClient) -> None:
        await client.pause(self.box)

    async def check(self, client: AsyncClient) -> None:
        state = await self.settled(client)
        if self.died:
            return
        if self.answered:
            assert state == self.wanted, f"{self.name}: {self.box} is {state}"
        await self.works(client, KEPT)


class Resume(Pause):
    """The other direction."""

    name = "resume"
    wanted = "Running"

    async def prepare(self, client: AsyncClient) -> None:
        await super().prepare(client)
        await client.pause(self.box)

    async def act(self, client: AsyncClient) -> None:
        await client.resume(self.box)


class Snapshot(OnBox):
    """Whole or not at all, and its source goes on."""

    name = "snapshot"

    async def prepare(self, client: AsyncClient) -> None:
        await super().prepare(client)
        fill = 'cd "$HOME"; head -c 5M /dev/zero > large; seq 300 | split -l 1 -a 3; echo kept > kept'
        assert await self.ground.run(client, self.box, fill) == 0

    async def act(self, client: AsyncClient) -> None:
        await client.snapshots.create(self.box)

    async def check(self, client: AsyncClient) -> None:
        taken = list(await client.snapshots.list(sandbox_id=self.box))
        assert taken or not self.answered, f"the snapshot of {self.box} is lost"
        for each in taken:
            await self._judge(client, each.id)
        await self.works(client, KEPT)

    async def _judge(self, client: AsyncClient, snapshot_id: str) -> None:
        states: list[str] = []

        async def ended() -> bool:
            states[:] = [(await client.snapshots.get(snapshot_id)).state]
            return states[0] in ("Ready", "Failed")

        await until(ended, f"snapshot {snapshot_id}")
        assert states == ["Ready"] or not self.answered, f"snapshot {snapshot_id} was ready and is {states}"
        if states == ["Ready"]:
            await self._whole(client, snapshot_id)
        await client.snapshots.delete(snapshot_id)

    async def _whole(self, client: AsyncClient, snapshot_id: str) -> None:
        request = {key: value for key, value in self.ground.body().items() if key != "image"}
        info, _ = await client.create({**request, "snapshotId": snapshot_id})
        whole = 'cd "$HOME" && test $(ls x* | wc -l) = 300 && grep -q kept kept'
        assert await self.ground.run(client, info.id, whole) == 0
        await client.kill(info.id)


class Policy(OnBox):
    """Either the policy before or the one after holds, and the process that enforces agrees."""

    name = "policy change"
    misses = ("fake", "docker")

    async def prepare(self, client: AsyncClient) -> None:
        self.box = await self.ground.made(client, networkPolicy=_policy(BEFORE))

    async def act(self, client: AsyncClient) -> None:
        await AsyncEgress(client, self.box).set(_policy(AFTER))

    async def check(self, client: AsyncClient) -> None:
        state = await self.settled(client)
        if self.died or state in ENDED:
            return
        egress = AsyncEgress(client, self.box)

        async def answers() -> bool:
            try:
                await egress.test(f"http://{BEFORE}/")
            except CasuloError:  # the process is being started again
                return False
            return True

        await until(answers, "the egress process")
        held = [rule["target"] for rule in (await egress.get())["egress"]]
        assert held in ([BEFORE], [AFTER]), held
        assert held == [AFTER] or not self.answered, "the change was answered and is gone"
        for name in (BEFORE, AFTER, OTHER):
            verdict = await egress.test(f"http://{name}/")
            assert verdict["allow"] == (held == [name]), (held, name, verdict)
        await self.works(client, KEPT)


def _policy(name: str) -> dict[str, object]:
    return {"defaultAction": "deny", "egress": [{"action": "allow", "target": name}]}


EVERY = (Create, HandOut, Restore, Delete, Pause, Resume, Snapshot, Policy)


def of(ground: Ground) -> list[Operation]:
    """One of each that this place has."""
    return [kind(ground) for kind in EVERY if ground.place not in kind.misses]
