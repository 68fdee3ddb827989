# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Limits are seen inside, hold under abuse, and the neighbour hardly notices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError
from casulo.runtimes.local.engines import GVISOR_TASKS

FORK_BOMB = "bomb() { bomb | bomb & }; bomb; sleep 1000"
THREAD_BOMB = (
    "import threading, time\n"
    "while True:\n"
    "    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    "    except RuntimeError: time.sleep(0.01)\n"
)
per_command = pytest.mark.parametrize("place", ["local"])
"""Where the limit on memory ends the command that passes it; a gVisor sandbox ends as a whole."""

EATER = "python3 -c \"data = bytearray(400 << 20); print('ate it all')\""
NEIGHBOUR_LIMIT = 0.2


@pytest.fixture(params=["local", "gvisor"])
def place(request: pytest.FixtureRequest) -> str:
    """Both isolations of the local runtime."""
    return str(request.param)


@per_command
async def test_memory_limit_is_visible_and_kills_only_the_eater(box: AsyncSandbox) -> None:
    assert (await box.metrics()).mem_total_mib == pytest.approx(128, abs=1)
    done = await box.commands.run(EATER)
    assert done.stdout == "" and not done.ok
    assert done.out_of_memory, done.summary()
    assert (await box.commands.run("echo alive")).stdout == "alive\n"
    assert (await box.refresh()).state == "Running"


@pytest.mark.parametrize("place", ["gvisor"])
async def test_memory_limit_ends_a_whole_gvisor_sandbox_and_is_told(
    box: AsyncSandbox, neighbour: AsyncSandbox
) -> None:
    assert (await box.metrics()).mem_total_mib == pytest.approx(128, abs=1)
    shared = "head -c 60M /dev/zero > /dev/shm/x; python3 -c 'bytearray(80 << 20)'; echo $?"
    with pytest.raises(CasuloError, match="memory limit"):
        await asyncio.wait_for(box.commands.run(shared), 15)  # told, not found out by waiting
    assert (await box.refresh()).state == "Failed"
    assert (await neighbour.commands.run("echo alive")).stdout == "alive\n"


async def test_memory_of_the_metrics_is_the_sandboxes_own(box: AsyncSandbox) -> None:
    before = (await box.metrics()).mem_used_mib
    await box.commands.start('python3 -c "import time; data = bytearray(64 << 20); time.sleep(30)"')
    for _ in range(50):
        used = (await box.metrics()).mem_used_mib
        if used - before > 55:
            break
        await asyncio.sleep(0.1)
    assert 55 < used - before < 90


async def test_cpu_limit_is_enforced(box: AsyncSandbox) -> None:
    """Half a processor: two spinning loops get half a second each second, together, as the host counts."""
    before, begun = await _cpu_seconds(box), time.monotonic()
    script = "for i in 1 2; do (timeout 2 sh -c 'while :; do :; done') & done; wait"
    await box.commands.run(script, timeout=20)
    used = await _cpu_seconds(box) - before
    assert 0.5 < used < 0.5 * (time.monotonic() - begun) + 0.3
    assert (await box.metrics()).cpu_count == pytest.approx(0.5, abs=0.01)


async def _cpu_seconds(box: AsyncSandbox) -> float:
    """The host's own count, which a sandbox may read; gVisor's kernel counts waiting as well."""
    old, new = "/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu.stat"
    told = (await box.commands.run(f"cat {old} || cat {new}")).stdout.split()
    return float(told[0]) / 1e9 if len(told) == 1 else float(told[1]) / 1e6


async def test_process_limit_is_enforced(box: AsyncSandbox) -> None:
    done = await box.commands.run("for i in $(seq 100); do sleep 5 & done; echo started", timeout=20)
    assert "fork" in done.stderr.lower() or not done.ok
    assert await box.health()


@per_command
@pytest.mark.parametrize(
    "bomb", [["bash", "-c", FORK_BOMB], ["python3", "-c", THREAD_BOMB]], ids=["processes", "threads"]
)
async def test_b075_fork_bomb(client: AsyncClient, neighbour: AsyncSandbox, bomb: list[str]) -> None:
    limits = {"cpu": "1", "memory": "256Mi", "pids": "256"}
    async with await AsyncSandbox.create("host", resources=limits, client=client) as box:
        await _limit_holds(box, 256)
        calm = await _neighbour_times(neighbour, 10)
        started = await box.commands.start(bomb)
        await asyncio.sleep(0.5)
        times = await _neighbour_times(neighbour, 30)
        figures = (
            f"neighbour calm {max(calm) * 1000:.0f} ms, under the bomb {max(times) * 1000:.0f} ms at most"
        )
        print(f"B075: {figures}")
        assert max(times) < NEIGHBOUR_LIMIT, figures
        refused = await box.commands.run(["true"])
        assert refused.ok or "process" in refused.error, refused.summary()
        begun = time.monotonic()
        assert await box.health()
        await box.commands.interrupt(started)
        await box.commands.wait(started, timeout=15)
        assert time.monotonic() - begun < 15
        await _calms_down(box)


@pytest.mark.parametrize("place", ["gvisor"])
async def test_b075_fork_bomb_in_gvisor(box: AsyncSandbox, neighbour: AsyncSandbox) -> None:
    """It runs into the limit on processes, or on memory, which ends it; the host and its neighbour go on."""
    before = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    await box.commands.start(["bash", "-c", FORK_BOMB])
    for _ in range(5):
        assert (await neighbour.commands.run("echo alive")).stdout == "alive\n"
        threads = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
        assert threads - before < GVISOR_TASKS
    await asyncio.wait_for(box.kill(), 30)


@per_command
async def test_b077_shared_memory_size(box: AsyncSandbox, client: AsyncClient) -> None:
    size = "df --output=size -B1 /dev/shm | tail -1"
    assert int((await box.commands.run(size)).stdout) == 64 << 20, "half of the memory limit"
    counted = "head -c 60M /dev/zero > /dev/shm/x; python3 -c 'bytearray(80 << 20)'; echo $?"
    assert (await box.commands.run(counted, timeout=20)).stdout != "0\n", "its files count as memory"
    assert (await box.commands.run("rm /dev/shm/x; echo alive")).stdout == "alive\n"
    wanted = {"memory": "1Gi", "shm": "64Mi"}
    async with await AsyncSandbox.create("host", resources=wanted, client=client) as other:
        assert int((await other.commands.run(size)).stdout) == 64 << 20
        full = await other.commands.run("head -c 65M /dev/zero > /dev/shm/x")
        assert not full.ok and "space" in full.stderr.lower()


async def test_b023_disk_full_upload_says_so_and_keeps_the_old_file(client: AsyncClient) -> None:
    wanted = {"memory": "256Mi", "shm": "4Mi"}
    async with await AsyncSandbox.create("host", resources=wanted, client=client) as box:
        await box.files.write("/dev/shm/file", b"old")
        with pytest.raises(Exception, match=r"(?i)space") as caught:
            await box.files.write("/dev/shm/file", b"n" * (8 << 20))
        assert caught.value.code  # type: ignore[attr-defined]
        assert await box.files.read_bytes("/dev/shm/file") == b"old"
        assert (await box.commands.run("ls -A /dev/shm")).stdout == "file\n"


async def _limit_holds(box: AsyncSandbox, limit: int) -> None:
    """Without the limit the bomb would take the machine down, so it is tried gently first."""
    script = f"for i in $(seq {limit + 40}); do sleep 4 & done; wait"
    assert "fork" in (await box.commands.run(script, timeout=30)).stderr.lower()


async def _neighbour_times(box: AsyncSandbox, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.monotonic()
        assert (await box.commands.run("true")).ok
        times.append(time.monotonic() - begun)
        await asyncio.sleep(0.1)
    return times


async def _calms_down(box: AsyncSandbox) -> None:
    for _ in range(50):
        if int((await box.commands.run("ls -d /proc/[0-9]* | wc -l")).stdout or "999") < 12:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the bomb's processes are still there")


def _seconds(text: str) -> float:
    minutes, seconds = text.rstrip("s").split("m")
    return 60 * float(minutes) + float(seconds)


async def test_out_of_memory_takes_commands_before_the_entrypoint(box: AsyncSandbox) -> None:
    shown = await box.commands.run("cat /proc/$(pgrep -o -x tail)/oom_score_adj /proc/self/oom_score_adj")
    entrypoint, command = map(int, shown.stdout.split())
    assert 0 < entrypoint < command
