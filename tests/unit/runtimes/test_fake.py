# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The fake runtime against the protocol of runtimes, with real daemons and real processes."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from casulo import linux
from casulo.images import daemon
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Exit, Handle, Isolation, Platform, Resources, Spec
from casulo.runtimes import processtree
from casulo.runtimes.fake import FakeRuntime
from support.machine import cannot_run

RESOURCES = Resources(1000, 2**29, 512, 2**28)
FOREVER = ("tail", "-f", "/dev/null")


def spec(*entrypoint: str, **env: str) -> Spec:
    return Spec("host", entrypoint or FOREVER, RESOURCES, env=env)


@dataclass
class Bench:
    """Runtimes over one folder, and what they reported."""

    data: Path
    ended: list[tuple[str, Exit | None]] = field(default_factory=list)
    runtimes: list[FakeRuntime] = field(default_factory=list)

    async def runtime(self) -> FakeRuntime:
        made = FakeRuntime(self.data, start_timeout_seconds=10)
        await made.open(lambda sandbox_id, exit_: self.ended.append((sandbox_id, exit_)))
        self.runtimes.append(made)
        return made

    async def wait_for_end(self) -> tuple[str, Exit | None]:
        async with asyncio.timeout(5):
            while not self.ended:
                await asyncio.sleep(0.005)
        return self.ended[0]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    try:
        daemon.execd_binary(daemon.host_architecture())
    except Unsupported as missing:
        cannot_run(missing.message)
    made = Bench(tmp_path)
    yield made
    for runtime in made.runtimes:
        await runtime.close()
    last = await made.runtime()
    for sandbox_id in await last.list():
        await last.destroy(sandbox_id, None, 0)
    await last.close()


def lives(handle: Handle) -> bool:
    return linux.start_time(int(handle.data["pid"])) == handle.data["started"]


async def answers(handle: Handle, path: str = "/ping") -> int:
    def ask() -> int:
        request = urllib.request.Request(f"http://{handle.host}:{handle.port}{path}")
        request.add_header("X-EXECD-ACCESS-TOKEN", handle.token)
        with urllib.request.urlopen(request, timeout=2) as reply:
            return int(reply.status)

    return await asyncio.to_thread(ask)


async def test_a_sandbox_answers_as_soon_as_it_is_there(bench: Bench) -> None:
    runtime = await bench.runtime()
    handle = await runtime.create("box", spec())
    assert await answers(handle) == 200
    reality = await runtime.inspect("box", handle)
    assert reality.alive and not reality.frozen
    assert await runtime.list() == {"box"}


async def test_sandboxes_have_ports_and_tokens_of_their_own(bench: Bench) -> None:
    runtime = await bench.runtime()
    handles = await asyncio.gather(*(runtime.create(f"box-{n}", spec()) for n in range(8)))
    assert len({handle.port for handle in handles}) == 8 == len({handle.token for handle in handles})


async def test_the_entrypoint_gets_the_composed_environment(bench: Bench, tmp_path: Path) -> None:
    runtime = await bench.runtime()
    out = tmp_path / "out"
    await runtime.create("box", spec("sh", "-c", f"env > {out}.new && mv {out}.new {out}; sleep 60", A="b c"))
    while not out.exists():
        await asyncio.sleep(0.005)
    found = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert (found["A"], found["OPENSANDBOX_ID"]) == ("b c", "box")
    assert found["EXECD_ENVS"].startswith(str(tmp_path)) and found["HOME"].startswith(str(tmp_path))
    assert "VIRTUAL_ENV" not in found and "PYTHONPATH" not in found


@pytest.mark.parametrize(
    ("script", "exit_"),
    [("exit 0", Exit(0)), ("exit 7", Exit(7)), ("kill -TERM $$", Exit(None, "SIGTERM"))],
)
async def test_the_end_of_the_entrypoint_is_reported(bench: Bench, script: str, exit_: Exit) -> None:
    runtime = await bench.runtime()
    handle = await runtime.create("box", spec("sh", "-c", f"sleep 0.1; {script}"))
    assert await bench.wait_for_end() == ("box", exit_)
    assert not (await runtime.inspect("box", handle)).alive
    assert await runtime.destroy("box", handle, 1) == exit_
    assert await runtime.list() == set()


async def test_an_entrypoint_that_does_not_exist_is_refused_and_leaves_nothing(bench: Bench) -> None:
    runtime = await bench.runtime()
    with pytest.raises(InvalidRequest) as failure:
        await runtime.create("box", spec("/no/such/program"))
    assert failure.value.code == Code.INVALID_ENTRYPOINT
    assert await runtime.list() == set()


async def test_b013_stopping_lets_the_entrypoint_finish(bench: Bench, tmp_path: Path) -> None:
    runtime = await bench.runtime()
    bye = tmp_path / "bye"
    script = f"trap 'echo bye > {bye}; exit 7' TERM; touch {bye}.armed; while :; do sleep 0.05; done"
    handle = await runtime.create("box", spec("sh", "-c", script))
    while not Path(f"{bye}.armed").exists():
        await asyncio.sleep(0.005)
    assert await runtime.destroy("box", handle, 5) == Exit(7)
    assert bye.read_text() == "bye\n"
    assert not lives(handle)


async def test_a_stubborn_tree_is_killed(bench: Bench) -> None:
    runtime = await bench.runtime()
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60' & sleep 60 & wait; sleep 60"
    handle = await runtime.create("box", spec("sh", "-c", script))
    await asyncio.sleep(0.2)
    members = processtree.members(int(handle.data["pid"]))
    assert len(members) >= 4
    await runtime.destroy("box", handle, 0.2)
    await asyncio.sleep(0.05)
    assert not any(linux.start_time(pid) for pid in members)


@pytest.mark.parametrize("grace", [0.0, 1.0])
async def test_destroying_twice_or_nothing_is_harmless(bench: Bench, grace: float) -> None:
    runtime = await bench.runtime()
    handle = await runtime.create("box", spec())
    await runtime.destroy("box", handle, grace)
    assert await runtime.destroy("box", handle, grace) is None
    assert await runtime.destroy("unknown", None, grace) is None
    assert not bench.ended, "an end that was asked for is no news"


async def test_cancelling_a_create_at_any_moment_leaves_nothing(bench: Bench) -> None:
    runtime = await bench.runtime()
    for step in range(20):
        creating = asyncio.create_task(runtime.create(f"box-{step}", spec()))
        await asyncio.sleep(step / 1000)
        creating.cancel()
        outcome = (await asyncio.gather(creating, return_exceptions=True))[0]
        if isinstance(outcome, Handle):
            await runtime.destroy(f"box-{step}", outcome, 0)
        assert await runtime.list() == set()


async def test_pause_stops_everything_and_resume_brings_it_back(bench: Bench, tmp_path: Path) -> None:
    runtime = await bench.runtime()
    ticks = tmp_path / "ticks"
    script = f"while :; do echo tick >> {ticks}; sleep 0.01; done"
    handle = await runtime.create("box", spec("sh", "-c", script))
    assert runtime.pause is not None
    await runtime.pause.pause("box", handle)
    assert (await runtime.inspect("box", handle)).frozen
    size = ticks.stat().st_size if ticks.exists() else 0
    await asyncio.sleep(0.1)
    assert (ticks.stat().st_size if ticks.exists() else 0) == size
    await runtime.pause.resume("box", handle)
    assert not (await runtime.inspect("box", handle)).frozen
    assert await answers(handle) == 200
    await asyncio.sleep(0.1)
    assert ticks.stat().st_size > size


async def test_a_paused_sandbox_can_be_destroyed(bench: Bench) -> None:
    runtime = await bench.runtime()
    handle = await runtime.create("box", spec())
    assert runtime.pause is not None
    await runtime.pause.pause("box", handle)
    await runtime.destroy("box", handle, 1)
    assert not lives(handle)


async def test_a_second_server_takes_over(bench: Bench) -> None:
    first = await bench.runtime()
    handle = await first.create("box", spec("sh", "-c", "sleep 0.5; exit 3"))
    await first.close()
    second = await bench.runtime()
    assert await second.list() == {"box"}
    assert (await second.inspect("box", handle)).alive
    assert await bench.wait_for_end() == ("box", Exit(3))


async def test_a_half_made_sandbox_of_another_server_is_removed(bench: Bench) -> None:
    first = await bench.runtime()
    handle = await first.create("box", spec())
    (bench.data / "fake" / "empty").mkdir()
    await first.close()
    second = await bench.runtime()
    for sandbox_id in ("box", "empty"):
        await second.destroy(sandbox_id, None, 0)
    assert not lives(handle)
    assert await second.list() == set()


def test_it_promises_nothing_that_it_cannot_keep(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path)
    assert runtime.capabilities.isolations == {Isolation.AUTO}
    assert "isolation.container" in runtime.capabilities.missing
    for refused in (
        Spec("alpine", (), RESOURCES),
        Spec("host", (), RESOURCES, platform=Platform("linux", "riscv64")),
    ):
        with pytest.raises(Unsupported) as failure:
            runtime.check(refused)
        assert failure.value.code == Code.IMAGE_UNSUPPORTED


async def test_the_events_file_is_what_the_daemon_wrote(bench: Bench) -> None:
    runtime = await bench.runtime()
    await runtime.create("box", spec("sh", "-c", "exit 4"))
    await bench.wait_for_end()
    lines = (bench.data / "fake" / "box" / "events").read_text().splitlines()
    event = json.loads(lines[-1])
    assert (event["event"], event["code"]) == ("exit", 4) and event["at"] > 0
