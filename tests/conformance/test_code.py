# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The code interpreter: contexts, what interrupts them, what ends them, and what is left."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from casulo.client import (
    AsyncClient,
    AsyncSandbox,
    CellStarted,
    CodeContext,
    CodeFailed,
    Conflict,
    Connection,
    InvalidRequest,
    NotFound,
    Output,
    RuntimeFailure,
    Value,
)
from support.server import Server

LOST = "ContextDiedError"


@pytest.fixture(params=["fake", "local"])
def place(request: pytest.FixtureRequest) -> str:
    """Where there are programs for all languages; tests/integration/docker runs cells of a small image."""
    return str(request.param)


@pytest.fixture
async def large_box(client: AsyncClient, image: str) -> AsyncIterator[AsyncSandbox]:
    """A sandbox with room for compilers."""
    resources = {"memory": "2Gi", "cpu": "2"}
    async with await AsyncSandbox.create(image, client=client, resources=resources) as made:
        yield made


@pytest.fixture
async def own_folder(box: AsyncSandbox) -> AsyncIterator[str]:
    """A path that is not there yet; on the fake runtime it is one of this machine."""
    path = f"/tmp/casulo-code-{uuid.uuid4().hex}"
    yield path
    await box.commands.run(["rm", "-rf", path])


async def until_busy(box: AsyncSandbox, context: CodeContext) -> None:
    for _ in range(200):
        if (await box.code.context(context.id)).busy:
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the cell never ran")


async def test_result_has_everything(box: AsyncSandbox) -> None:
    done = await box.code.run("import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    assert (done.stdout, done.stderr, done.text, done.ok) == ("out\n", "err\n", "42", True)
    assert done.context_id and done.execution_count == 1 and not done.fresh
    failed = await box.code.run("1/0")
    assert not failed.ok and failed.error is not None and failed.error.name == "ZeroDivisionError"
    with pytest.raises(CodeFailed, match="division by zero"):
        failed.check()


async def test_handlers_get_output_as_it_comes(any_box: AsyncSandbox) -> None:
    arrivals: list[tuple[str, float]] = []
    values: list[Value] = []
    code = "import time\nfor i in range(3):\n    print(i); time.sleep(0.3)\ndisplay('shown')"
    await any_box.code.run(
        code,
        on_stdout=lambda text: arrivals.append((text, time.monotonic())),
        on_result=values.append,
    )
    assert [text for text, _ in arrivals] == ["0\n", "1\n", "2\n"]
    assert arrivals[2][1] - arrivals[0][1] > 0.4
    assert [value.text for value in values] == ["'shown'"] and values[0].display


async def test_stream_keeps_the_order(box: AsyncSandbox) -> None:
    code = "print('a'); display(1); print('b'); display(2)\n3"
    items = [item async for item in box.code.stream(code)]
    told = [i.data if isinstance(i, Output) else i.text for i in items if isinstance(i, Output | Value)]
    assert told == [b"a\n", "1", b"b\n", "2", "3"]
    assert isinstance(items[0], CellStarted)


async def test_rich_values(box: AsyncSandbox) -> None:
    code = (
        "class R:\n    def _repr_html_(self): return '<b>é</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n    def _repr_json_(self): return {'a': [1, None]}\n"
        "    def __repr__(self): return 'R'\nR()"
    )
    value = (await box.code.run(code)).value
    assert value is not None
    assert (value.text, value.html, value.png, value.json) == ("R", "<b>é</b>", b"\x89PNG", {"a": [1, None]})
    assert value._repr_mimebundle_()["text/html"] == "<b>é</b>"


async def test_contexts_are_apart_and_run_at_once(box: AsyncSandbox) -> None:
    one, two = await box.code.create_context(), await box.code.create_context("python")
    await box.code.run("secret = 1", context=one)
    assert (await box.code.run("secret", context=two)).error is not None
    nap = "import time; begun = time.monotonic(); time.sleep(3); print(begun, time.monotonic())"
    ends = await asyncio.gather(*(box.code.run(nap, context=c) for c in (one, two)), box.code.run(nap))
    begins, stops = zip(*(map(float, end.stdout.split()) for end in ends), strict=True)
    assert max(begins) < min(stops), "there is a moment in which all three run"


async def test_administration(box: AsyncSandbox) -> None:
    assert await box.code.contexts() == []
    one, two = [await box.code.create_context("bash") for _ in range(2)]
    await box.code.run("1")
    assert {c.id for c in await box.code.contexts("bash")} == {one.id, two.id}
    assert len(await box.code.contexts()) == 3
    assert (await box.code.context(one.id)).language == "bash"
    await box.code.delete_context(one)
    with pytest.raises(NotFound):
        await box.code.context(one.id)
    with pytest.raises(NotFound):
        await box.code.run("true", context=one)
    await box.code.delete_contexts("python")
    assert [c.id for c in await box.code.contexts()] == [two.id]


async def test_context_begins_in_its_directory(box: AsyncSandbox, own_folder: str) -> None:
    for language, code in (("python", "import os; print(os.getcwd())"), ("bash", "pwd")):
        context = await box.code.create_context(language, cwd=own_folder)
        assert (await box.code.run(code, context=context)).stdout == f"{own_folder}\n"


async def test_busy_context_refuses(box: AsyncSandbox) -> None:
    context = await box.code.create_context()
    running = asyncio.create_task(box.code.run("import time; time.sleep(30)", context=context))
    await until_busy(box, context)
    with pytest.raises(Conflict, match="session is busy"):
        await box.code.run("1", context=context)
    await box.code.interrupt(context)
    assert (await running).error is not None
    assert (await box.code.run("1", context=context)).text == "1"


@pytest.mark.parametrize(
    ("language", "code", "probe", "kept"),
    [
        ("python", "while True: pass", "x", "5"),
        ("python", "import time; time.sleep(60)", "x", "5"),
        ("python", "import asyncio; await asyncio.sleep(60)", "x", "5"),
        ("python", "import asyncio; await asyncio.sleep(0)\nwhile True: pass", "x", "5"),
        ("python", "import subprocess; subprocess.run(['sleep', '60'])", "x", "5"),
        ("python", "import threading; threading.Event().wait()", "x", "5"),
        ("python", "import os; r, w = os.pipe(); os.read(r, 1)", "x", "5"),
        ("javascript", "while (true) {}", "x", "5"),
        ("javascript", "await new Promise(() => {})", "x", "5"),
        ("javascript", "require('child_process').execSync('sleep 60')", "x", "5"),
        ("java", "while (true) {}", "x", "5"),
        ("java", "Thread.sleep(60000);", "x", "5"),
        ("bash", "while :; do :; done", "echo $x", "5"),
        ("bash", "sleep 60; echo never", "echo $x", "5"),
    ],
)
async def test_interrupt_keeps_the_state(
    large_box: AsyncSandbox, language: str, code: str, probe: str, kept: str
) -> None:
    define = "int x = 5;" if language == "java" else "x=5"
    context = await large_box.code.create_context(language)
    await large_box.code.run(define, context=context)
    running = asyncio.create_task(large_box.code.run(code, context=context))
    await until_busy(large_box, context)
    await asyncio.sleep(1)  # so that it is in the middle of what it does, on a busy machine too
    begun = time.monotonic()
    await large_box.code.interrupt(context)
    done = await running
    assert time.monotonic() - begun < 30
    assert done.error is not None and done.error.reason == "interrupted", done
    after = await large_box.code.run(probe, context=context)
    assert (after.stdout.strip() or after.text) == kept and not after.fresh


async def test_interrupt_after_a_cell_that_wanted_none(box: AsyncSandbox) -> None:
    ignoring = "import signal\nx, old = 5, signal.signal(signal.SIGINT, signal.SIG_IGN)"
    context = await box.code.create_context("python")
    (await box.code.run(ignoring, context=context)).check()
    running = asyncio.create_task(box.code.run("while True: pass", context=context))
    await until_busy(box, context)
    await box.code.interrupt(context)
    done = await running
    assert done.error is not None and done.error.name == "KeyboardInterrupt"
    assert (await box.code.run("x", context=context)).text == "5"


async def test_interrupt_of_what_cannot_be_stopped(box: AsyncSandbox) -> None:
    """A loop inside C code never looks for signals: its context is ended, and that is told."""
    context, counting = await box.code.create_context("python"), asyncio.Event()
    code = "import sys; print('counting', flush=True); sum(range(10 ** 12))"
    running = asyncio.create_task(box.code.run(code, context=context, on_stdout=lambda _: counting.set()))
    await counting.wait()
    await asyncio.sleep(1)
    await box.code.interrupt(context)
    done = await running
    assert done.error is not None
    assert (done.error.name, done.error.reason) == ("CodeInterruptedError", "interrupted")
    assert done.error.context_died
    after = await box.code.run("1 + 1", context=context)
    assert after.text == "2" and after.fresh


async def test_time_limit(box: AsyncSandbox) -> None:
    await box.code.run("x = 5")
    begun = time.monotonic()
    done = await box.code.run("print('so far')\nwhile True: pass", timeout=0.5)
    assert time.monotonic() - begun < 30
    assert done.error is not None and done.error.reason == "timeout"
    assert done.error.name == "CodeTimeoutError" and done.stdout == "so far\n"
    assert (await box.code.run("x")).text == "5"
    with pytest.raises(InvalidRequest):
        await box.code.run("1", timeout=0)


@pytest.mark.parametrize(
    ("language", "code", "reason"),
    [
        ("python", "import os; os._exit(3)", "exit"),
        ("python", "import ctypes; ctypes.string_at(0)", "signal"),
        ("python", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal"),
        ("javascript", "process.exit(3)", "exit"),
        ("javascript", "process.abort()", "signal"),
        ("bash", "exit 3", "exit"),
        ("java", "System.exit(3)", "exit"),
    ],
)
async def test_death_is_told_and_the_next_run_is_fresh(
    large_box: AsyncSandbox, language: str, code: str, reason: str
) -> None:
    context = await large_box.code.create_context(language)
    await large_box.code.run("x=1", context=context)
    done = await large_box.code.run(code, context=context)
    assert done.error is not None and (done.error.name, done.error.reason) == (LOST, reason)
    after = await large_box.code.run("echo alive" if language == "bash" else "1 + 1", context=context)
    assert after.ok and after.fresh
    again = await large_box.code.run("echo alive" if language == "bash" else "1 + 1", context=context)
    assert not again.fresh


async def test_out_of_memory_is_told(local_server: Server) -> None:
    """Only where a sandbox has a limit of its own."""
    async with (
        AsyncClient(Connection(local_server.url, local_server.api_key)) as client,
        await AsyncSandbox.create("host", client=client, resources={"memory": "256Mi"}) as box,
    ):
        done = await box.code.run("kept = []\nwhile True: kept.append(b'x' * 10 ** 7)", timeout=30)
        assert done.error is not None and (done.error.name, done.error.reason) == (LOST, "oom")
        assert "memory limit" in done.error.value
        child = "import subprocess, sys\nhog = 'x = b\"x\" * 10 ** 9'\n"
        child += "subprocess.run([sys.executable, '-c', hog]).returncode"
        assert (await box.code.run(child, timeout=30)).text == "-9"


async def test_context_that_dies_between_cells(box: AsyncSandbox) -> None:
    await box.code.run("import threading, os; threading.Timer(0.2, lambda: os._exit(9)).start()")
    await asyncio.sleep(0.6)
    after = await box.code.run("1 + 1")
    assert after.ok and after.fresh and after.text == "2"


async def test_threads_that_live_on_do_no_harm(box: AsyncSandbox) -> None:
    code = (
        "import threading, time, sys\ndef chatter():\n    while True:\n"
        "        print('o'); print('e', file=sys.stderr); display(1); time.sleep(0.01)\n"
        "threading.Thread(target=chatter, daemon=True).start()"
    )
    await box.code.run(code)
    for number in range(20):
        await asyncio.sleep(0.02)
        done = await box.code.run(f"time.sleep(0.02)\n{number} + 1")
        assert done.ok and done.text == str(number + 1)
        assert set(done.stdout) <= {"o", "\n"} and set(done.stderr) <= {"e", "\n"}


async def test_removed_context_ends_its_cell_and_all_it_started(box: AsyncSandbox) -> None:
    context = await box.code.create_context("python")
    code = "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '4242'])\nwhile True: pass"
    running = asyncio.create_task(box.code.run(code, context=context))
    await until_busy(box, context)
    await box.code.delete_context(context)
    done = await running
    assert done.error is not None and done.error.reason == "removed"
    assert (await box.commands.run("pgrep -f '[s]leep 4242'")).stdout == ""


async def test_fifty_contexts_leave_nothing(box: AsyncSandbox) -> None:
    count = "cat /proc/$PPID/task/*/children | wc -w"
    before = int((await box.commands.run(count)).stdout)
    for _ in range(10):
        made = [await box.code.create_context(language) for language in ("python", "bash") * 2]
        made.append(await box.code.create_context("python"))
        await asyncio.gather(*(box.code.run("x=1", context=context) for context in made))
        await asyncio.gather(*(box.code.delete_context(context) for context in made))
    assert await box.code.contexts() == []
    assert abs(int((await box.commands.run(count)).stdout) - before) <= 1


async def test_caller_who_leaves_interrupts(box: AsyncSandbox) -> None:
    context = await box.code.create_context()
    running = asyncio.create_task(box.code.run("import time; time.sleep(60)", context=context))
    await until_busy(box, context)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(100):
        if not (await box.code.context(context.id)).busy:
            break
        await asyncio.sleep(0.05)
    assert (await box.code.run("1", context=context)).text == "1"


async def test_a_hundred_megabytes_arrive(box: AsyncSandbox, place: str) -> None:
    lines = 104_858 if place == "gvisor" else 1_048_576  # there each line costs a switch of kernels
    total = 0

    def count(text: str) -> None:
        nonlocal total
        total += text.count("x")

    code = f"line = 'x' * 99\nfor _ in range({lines}): print(line)"
    done = await box.code.run(code, on_stdout=count, capture=False)
    assert done.ok and total == 99 * lines


async def test_slow_reader_holds_up_only_its_cell(box: AsyncSandbox) -> None:
    total = 0
    async for item in box.code.stream("print('y' * 50_000_000)"):
        if isinstance(item, Output):
            total += len(item.data)
            if total < 1_000_000:
                assert (await box.code.run("echo on", language="bash")).stdout == "on\n"
    assert total == 50_000_001


async def test_changed_files_are_listed(box: AsyncSandbox, own_folder: str) -> None:
    context = await box.code.create_context("python", cwd=own_folder)
    await box.files.write(f"{own_folder}/old.csv", "a\n")
    await box.files.write(f"{own_folder}/same.txt", "same")
    code = "import os; os.makedirs('sub')\nopen('sub/new.png', 'wb').write(b'png')"
    code += "\nopen('old.csv', 'a').write('b')"
    done = await box.code.run(code, context=context)
    assert [(f.path, f.size, f.mime, f.change) for f in done.files] == [
        (f"{own_folder}/old.csv", 3, "text/csv", "modified"),
        (f"{own_folder}/sub/new.png", 3, "image/png", "created"),
    ]
    assert (await box.code.run("1", context=context)).files == ()


async def test_unknown_languages_and_versions(box: AsyncSandbox) -> None:
    with pytest.raises(RuntimeFailure, match='unsupported language "cobol": there are python'):
        await box.code.create_context("cobol")
    await box.commands.run("mkdir -p $(dirname $EXECD_ENVS) && echo PYTHON_VERSION=2.6 >> $EXECD_ENVS")
    with pytest.raises(RuntimeFailure, match=r"PYTHON_VERSION is 2\.6, but of Python the image has only 3\."):
        await box.code.run("1")
    await box.commands.run("echo PYTHON_VERSION=3 >> $EXECD_ENVS")
    assert (await box.code.run("1")).text == "1"


async def test_b089_only_the_asked_language_starts(box: AsyncSandbox) -> None:
    """Nothing is fetched and nothing else is started: the first result needs one more process."""
    children = "for p in $(cat /proc/$PPID/task/*/children); do cat /proc/$p/comm; done"
    programs = children + " | grep -cE 'python|node|java|^go$'"
    before = int((await box.commands.run(programs)).stdout)
    assert (await box.code.run("1 + 1")).text == "2"
    assert int((await box.commands.run(programs)).stdout) - before <= 1


async def test_probe_of_official_clients_succeeds(box: AsyncSandbox) -> None:
    probe = "exec 3<>/dev/tcp/127.0.0.1/${JUPYTER_PORT:-44771}"
    assert (await box.commands.run(["bash", "-c", probe])).ok
