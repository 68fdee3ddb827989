# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The sync face: the same surface as the async one, and safe between threads."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable

import pytest

from casulo.client import sync
from casulo.client.blocking import Twin, blocking, iterating
from casulo.client.code import AsyncCode
from casulo.client.commands import AsyncCommands
from casulo.client.files import AsyncFiles
from casulo.client.isolated import AsyncIsolated, AsyncIsolatedSession
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.client.sessions import AsyncSession, AsyncSessions
from casulo.client.terminals import AsyncTerminal, AsyncTerminals

PAIRS = [
    (AsyncClient, sync.Client),
    (AsyncSandbox, sync.Sandbox),
    (AsyncCommands, sync.Commands),
    (AsyncCode, sync.Code),
    (AsyncFiles, sync.Files),
    (AsyncSession, sync.Session),
    (AsyncSessions, sync.Sessions),
    (AsyncIsolated, sync.Isolated),
    (AsyncIsolatedSession, sync.IsolatedSession),
    (AsyncTerminal, sync.Terminal),
    (AsyncTerminals, sync.Terminals),
]
ASYNC_ONLY = {AsyncClient: {"transport"}}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_faces_have_the_same_names(source: type, twin: type) -> None:
    assert public(twin) >= public(source) - ASYNC_ONLY.get(source, set())
    attributes = {
        "info",
        "connection",
        "id",
        "exit_code",
        "offset",
    }  # properties of the twin, set in the constructor of the source
    assert public(twin) - public(source) <= attributes


@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_faces_take_the_same_parameters(source: type, twin: type) -> None:
    for name in public(source) & public(twin):
        one, other = getattr(source, name), getattr(twin, name)
        if callable(one):
            assert parameters(one) == parameters(other), f"{twin.__name__}.{name}"


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]


class Source:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.closed = threading.Event()

    async def double(self, value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    async def call(self, *, on_word: Callable[[str], object] | None = None) -> list[object]:
        assert on_word is not None
        words = ("a", "b")
        return [await on_word(word) for word in words]  # type: ignore[misc]

    async def wait(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            self.cancelled.set()
            raise

    async def count(self, to: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(to):
                await asyncio.sleep(0)
                yield number
        finally:
            self.closed.set()


class Sync(Twin[Source]):
    double = blocking(Source.double)
    call = blocking(Source.call)
    wait = blocking(Source.wait)
    count = iterating(Source.count)


def test_results_and_errors_come_back() -> None:
    twin = Sync(Source())
    assert twin.double(21) == 42
    with pytest.raises(TypeError):
        twin.double("x", "y")


def test_handlers_run_in_the_calling_thread_and_may_block() -> None:
    twin, threads = Sync(Source()), set()

    def on_word(word: str) -> str:
        threads.add(threading.current_thread())
        return word * twin.double(2)

    assert twin.call(on_word=on_word) == ["aaaa", "bbbb"]
    assert threads == {threading.current_thread()}


def test_errors_of_handlers_pass_through() -> None:
    def on_word(_: str) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Sync(Source()).call(on_word=on_word)


def test_iterators_are_closed_when_left_early() -> None:
    source = Source()
    items = Sync(source).count(1000)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert source.closed.is_set()
    assert list(Sync(Source()).count(5)) == [0, 1, 2, 3, 4]


def test_an_interrupt_cancels_and_waits_for_the_clean_up() -> None:
    source = Source()
    main = threading.get_ident()
    # Whoever started the tests may have had this signal ignored, as shells do for what runs behind them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            Sync(source).wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert source.cancelled.is_set()


def test_many_threads_share_the_loop() -> None:
    twin, results = Sync(Source()), []
    threads = [threading.Thread(target=lambda n=n: results.append(twin.double(n))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [n * 2 for n in range(20)]


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    script = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "from casulo.client.blocking import Twin, blocking\n"
        "class S:\n    async def f(self): return 7\n"
        "class T(Twin): f = blocking(S.f)\n"
        "T(S()).f(); pid = os.fork()\n"
        "code = T(S()).f() if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "os._exit(code)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=30, env=os.environ).returncode == 7


def test_the_sync_api_refuses_its_own_loop() -> None:
    twin = Sync(Source())

    class Misuse:
        async def call(self) -> int:
            return twin.double(1)

    class MisuseTwin(Twin[Misuse]):
        call = blocking(Misuse.call)

    with pytest.raises(RuntimeError, match="own event loop"):
        MisuseTwin(Misuse()).call()


def test_importing_the_client_is_quick_and_brings_no_http() -> None:
    script = (
        "import sys, casulo.client\n"
        "print(*(name in sys.modules for name in ('httpcore', 'rich', 'pydantic', 'websockets')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False"] * 4
