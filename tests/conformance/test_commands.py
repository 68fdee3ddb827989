# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Commands: exact bytes, ends that are told, whole trees that end."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import time
import uuid

import pytest

from casulo.client.sandbox import AsyncSandbox
from casulo.client.stream import Exit, Output
from casulo.model.errors import CasuloError

LINE = 20_971_520
DAEMON_MEMORY = "grep -i vmrss /proc/$PPID/status"


async def test_result_has_everything(box: AsyncSandbox) -> None:
    done = await box.commands.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert not done.ok and done.id


async def test_directory_environment_and_argv(box: AsyncSandbox) -> None:
    done = await box.commands.run('pwd; printf "%s" "$WORD"', cwd="/tmp", env={"WORD": "a b"})
    assert done.stdout == "/tmp\na b"
    plain = await box.commands.run(["printf", "%s|%s", "$HOME", "a  b"])
    assert plain.stdout == "$HOME|a  b"
    assert (await box.commands.run("cat")).stdout == ""  # standard input is /dev/null


async def test_background_status_logs_and_wait(box: AsyncSandbox) -> None:
    started = await box.commands.start("echo one; sleep 0.3; echo two >&2; exit 4")
    assert (await box.commands.status(started)).running
    ended = await box.commands.wait(started, timeout=10)
    assert ended.exit_code == 4
    logs = await box.commands.logs(started)
    assert logs.text == "one\ntwo\n"
    assert (await box.commands.logs(started, logs.cursor)).data == b""
    assert (await box.commands.logs(started, 4)).text == "two\n"


@pytest.mark.parametrize("newline", ["", "; echo"], ids=["bare", "with-newline"])
async def test_b001_one_very_long_line(any_box: AsyncSandbox, newline: str) -> None:
    before = await _daemon_kib(any_box)
    total, wrong, ended = 0, 0, None
    async for item in any_box.commands.stream(f"head -c {LINE} /dev/zero | tr '\\0' 'a'{newline}"):
        if isinstance(item, Exit):
            ended = item
        elif isinstance(item, Output):
            total += len(item.data)
            wrong += len(item.data) - item.data.count(b"a")
    assert ended is not None and ended.exit_code == 0
    assert (total, wrong) == ((LINE + 1, 1) if newline else (LINE, 0))
    assert await _daemon_kib(any_box) - before < 64 * 1024


async def test_b003_exact_bytes_arrive_live(any_box: AsyncSandbox) -> None:
    seen, first, ended = b"", 0.0, 0.0
    async for item in any_box.commands.stream("printf 'a\\rb\\r\\nc'; sleep 2"):
        if isinstance(item, Output):
            first = first or time.monotonic()
            seen += item.data
        ended = time.monotonic()
    assert seen == b"a\rb\r\nc"
    assert ended - first > 1.5, "it came while the command slept, not with its end"


async def test_bytes_that_are_not_text(box: AsyncSandbox) -> None:
    done = await box.commands.run("printf '\\377\\000\\303'; sleep 0.1; printf '\\251\\n'")
    assert done.stdout_bytes == b"\xff\x00\xc3\xa9\n"


async def test_b005_slow_reader_holds_up_nobody_else(box: AsyncSandbox) -> None:
    before = await _daemon_kib(box)
    total, others = 0, 0
    stream = box.commands.stream("yes | head -c 52428800")
    async for item in stream:
        if isinstance(item, Exit):
            assert item.exit_code == 0
            break
        total += len(item.data) if isinstance(item, Output) else 0
        if others < 20:  # nobody reads the stream meanwhile
            assert await box.health()
            assert (await box.commands.run("true")).ok
            others += 1
            await asyncio.sleep(0.05)
            if others == 20:
                assert await _daemon_kib(box) - before < 64 * 1024
    assert total == 52_428_800
    assert others == 20


async def test_b007_every_stream_ends_cleanly(box: AsyncSandbox, place: str) -> None:
    """One connection, a client that insists on the final chunk of every answer."""
    endpoint = await box.endpoint(44772)
    count = 200 if place == "gvisor" else 2000
    times = await asyncio.to_thread(_many_on_one_connection, endpoint.address, dict(endpoint.headers), count)
    p50, p95 = sorted(times)[count // 2], sorted(times)[count * 95 // 100]
    print(f"p50 {p50 * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms")
    done = await asyncio.gather(*(box.commands.run(f"echo {n}") for n in range(64)))
    assert [d.stdout for d in done] == [f"{n}\n" for n in range(64)]


async def test_b009_command_not_found(box: AsyncSandbox) -> None:
    shell = await box.commands.run("no-such-binary --version")
    assert shell.exit_code == 127 and "no-such-binary" in shell.stderr
    vector = await box.commands.run(["no-such-binary", "--version"])
    assert not vector.ok and "no-such-binary" in vector.error + vector.stderr


@pytest.mark.parametrize(
    "script",
    [
        "echo before; sleep {n} & sleep {n} & wait",
        "echo before; trap '' TERM; while :; do sleep {n}; done",
        "echo before; setsid sh -c 'sleep {n}' & sleep {n}",
        'echo before; exec python3 -c \'import socket; s = socket.create_server(("127.0.0.1", {port}));'
        " s.accept()'",
    ],
    ids=["children", "ignores-term", "own-session", "listener"],
)
async def test_b011_timeout_ends_the_whole_tree(box: AsyncSandbox, script: str) -> None:
    number, port = random.randrange(100_000, 900_000), random.randrange(20_000, 30_000)
    begun = time.monotonic()
    done = await box.commands.run(script.format(n=number, port=port), timeout=1)
    assert done.timed_out and not done.ok
    assert time.monotonic() - begun < 60
    assert done.stdout == "before\n"
    await _assert_no_process(box, str(number))
    probe = f"import socket; socket.create_server(('127.0.0.1', {port})).close()"
    assert (await box.commands.run(["python3", "-c", probe])).ok


async def test_interrupt_ends_the_whole_tree(box: AsyncSandbox) -> None:
    number = random.randrange(100_000, 900_000)
    started = await box.commands.start(f"setsid sleep {number} & sleep {number}")
    await box.commands.interrupt(started)
    await box.commands.wait(started, timeout=10)
    await _assert_no_process(box, str(number))


async def test_background_child_does_not_hold_the_stream(box: AsyncSandbox) -> None:
    begun = time.monotonic()
    done = await box.commands.run("sleep 30 & echo started")
    assert done.ok and done.stdout == "started\n"
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("size", [200 * 1024, 3 * 1024 * 1024], ids=["200KiB", "3MiB"])
async def test_b017_very_long_command(box: AsyncSandbox, size: int) -> None:
    try:
        done = await box.commands.run(f": '{'x' * size}'; echo done")
    except CasuloError as error:
        assert error.code, "a refusal names its reason"
    else:
        assert done.stdout == "done\n", done.summary()


async def test_b017_very_long_argument(box: AsyncSandbox) -> None:
    done = await box.commands.run(["echo", "x" * 200 * 1024])
    assert done.ok or "long" in done.error


async def test_giving_up_interrupts_the_command(box: AsyncSandbox) -> None:
    number = random.randrange(100_000, 900_000)
    running = asyncio.create_task(box.commands.run(f"sleep {number}"))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _assert_no_process(box, str(number))


async def test_environment_file_reaches_later_commands(box: AsyncSandbox) -> None:
    name = f"V{uuid.uuid4().hex[:8].upper()}"
    await box.commands.run(f'mkdir -p "$(dirname "$EXECD_ENVS")"; echo "{name}=\'a b\'" >> "$EXECD_ENVS"')
    assert (await box.commands.run(f'printf "%s" "${name}"')).stdout == "a b"


async def _daemon_kib(box: AsyncSandbox) -> int:
    return int((await box.commands.run(DAEMON_MEMORY)).check().stdout.split()[1])


async def _assert_no_process(box: AsyncSandbox, mark: str) -> None:
    """No process has `mark` among its arguments; the search itself does not contain it."""
    pattern = f"[{mark[0]}]{mark[1:]}"
    look = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c {pattern}"
    for _ in range(40):
        if (await box.commands.run(look)).stdout == "0\n":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"a process with {mark} is left")


def _many_on_one_connection(address: str, headers: dict[str, str], count: int) -> list[float]:
    host, slash, path = address.partition("/")
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.connect()
    own, times = connection.sock, []
    body = json.dumps({"command": "true"})
    try:
        for _ in range(count):
            begun = time.perf_counter()
            connection.request(
                "POST", f"{slash}{path}/command", body, {**headers, "Content-Type": "application/json"}
            )
            text = connection.getresponse().read().decode()
            times.append(time.perf_counter() - begun)
            assert text.count("execution_complete") == 1, text
            assert connection.sock is own, "the connection was not kept"
    finally:
        connection.close()
    return times
