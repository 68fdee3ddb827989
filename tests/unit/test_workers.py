# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Blocking work beside an event loop: results, failures, order, callers who leave, and the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from casulo.workers import Workers


async def test_results_and_failures_come_back() -> None:
    workers = Workers(2, "test")
    assert await workers.run(lambda: 7) == 7
    with pytest.raises(KeyError):
        await workers.run(lambda: {}["nothing"])
    with pytest.raises(RuntimeError):
        await workers.run(lambda: next(iter(())))
    workers.close()


async def test_no_more_threads_than_wanted_and_none_for_nothing() -> None:
    workers, gate = Workers(3, "test"), threading.Event()
    seen: set[str] = set()

    def work() -> None:
        seen.add(threading.current_thread().name)
        gate.wait(5)

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test_")]
    calls = [asyncio.ensure_future(workers.run(work)) for _ in range(9)]
    while len(seen) < 3:
        await asyncio.sleep(0.001)
    gate.set()
    await asyncio.gather(*calls)
    assert seen == {"test_0", "test_1", "test_2"}
    workers.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test_")]


async def test_one_worker_keeps_the_order_and_finishes_what_nobody_waits_for() -> None:
    workers, done = Workers(1, "test"), list[int]()
    calls = [asyncio.ensure_future(workers.run(lambda n=n: done.append(n))) for n in range(50)]
    await asyncio.sleep(0)
    calls[10].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    workers.close()
    assert done == list(range(50))
    assert calls[10].cancelled()
