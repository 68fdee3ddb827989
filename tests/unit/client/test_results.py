# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What is made of a stream: results, handlers with whole characters, statuses."""

from __future__ import annotations

import pytest

from casulo.client.results import Capture, CommandFailed, CommandStatus, Result
from casulo.client.stream import Exit, Output, Started


async def test_capture_keeps_the_streams_apart_and_every_byte() -> None:
    capture = Capture(None, None, keep=True)
    for item in (
        Started("c"),
        Output("stdout", b"a\xff"),
        Output("stderr", b"e"),
        Exit(3, "exit", duration_ms=5),
    ):
        await capture.take(item)
    result = await capture.result("c", merged=False)
    assert result == Result(3, "exit", "", "", 5, "c", b"a\xff", b"e")
    assert (result.stdout, result.stderr, result.ok) == ("a\ufffd", "e", False)


async def test_handlers_get_whole_characters_and_may_be_coroutines() -> None:
    plain: list[str] = []
    awaited: list[str] = []

    async def on_stderr(text: str) -> None:
        awaited.append(text)

    capture = Capture(plain.append, on_stderr, keep=False)
    for piece in ("é".encode()[:1], "é".encode()[1:] + b"x", b"\xe2\x82"):
        await capture.take(Output("stdout", piece))
        await capture.take(Output("stderr", piece))
    await capture.take(Exit(0))
    result = await capture.result("c", merged=False)
    assert plain == awaited == ["éx", "\ufffd"]
    assert result.stdout_bytes == b""


def test_check_raises_with_the_reason_and_the_last_words() -> None:
    good = Result(0, id="c")
    assert good.check() is good
    with pytest.raises(CommandFailed, match="exit code 2: no such file") as caught:
        Result(2, "exit", id="c", stderr_bytes=b"warning\nno such file\n").check()
    assert caught.value.result.exit_code == 2
    with pytest.raises(CommandFailed, match="time limit"):
        Result(143, "timeout", "SIGTERM", id="c").check()


def test_status_of_running_ended_and_never_started() -> None:
    base = {"id": "c", "content": "x", "started_at": "2026-01-01T00:00:00Z"}
    running = CommandStatus.read({**base, "running": True})
    assert (running.running, running.exit_code, running.finished_at) == (True, None, None)
    ended = CommandStatus.read(
        {
            **base,
            "running": False,
            "exit_code": 137,
            "reason": "signal",
            "finished_at": "2026-01-01T00:00:01.5Z",
        }
    )
    assert ended.exit() == Exit(137, "signal", "SIGKILL", "", 1500)
    lost = CommandStatus.read(
        {**base, "running": False, "exit_code": 127, "reason": "not_found", "error": "x: not found"}
    )
    assert lost.exit() == Exit(None, "not_found", error="x: not found")
