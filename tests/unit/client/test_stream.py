# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The event stream without a socket: framing, offsets, endings."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from casulo.client.stream import Assembly, Exit, Frames, Ledger, Output, Started
from casulo.model.errors import RuntimeFailure

INIT = {"type": "init", "timestamp": 1, "text": "c1"}
COMPLETE = {"type": "execution_complete", "timestamp": 2, "execution_time": 7}


def wire(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n\n" for event in events)


def out(data: bytes, offset: int, stream: str = "stdout") -> dict[str, Any]:
    return {"type": stream, "timestamp": 1, "base64": base64.b64encode(data).decode(), "offset": offset}


def test_frames_do_not_depend_on_how_the_network_cut_them() -> None:
    whole = wire(INIT, out(b"a\nb", 0), COMPLETE)
    for seed in range(50):
        rest, frames, events = whole, Frames(), []
        cuts = random.Random(seed)
        while rest:
            size = cuts.randint(1, 9)
            events += frames.feed(rest[:size])
            rest = rest[size:]
        assert events == [INIT, out(b"a\nb", 0), COMPLETE]


@pytest.mark.parametrize("prefix", [b"", b"data: ", b"data:"])
def test_frames_take_bare_objects_and_server_sent_events(prefix: bytes) -> None:
    frames = Frames()
    assert frames.feed(prefix + json.dumps(INIT).encode() + b"\r\n\r\n: comment\n\n") == [INIT]


def test_frames_give_the_last_event_without_a_line_end_but_no_half_one() -> None:
    frames = Frames()
    assert frames.feed(json.dumps(COMPLETE).encode()) == []
    assert frames.end() == [COMPLETE]
    frames.feed(json.dumps(COMPLETE).encode()[:-5])
    assert frames.end() == []


@pytest.mark.parametrize("line", [b"[1]\n", b"oops\n", b'{"type": \n'])
def test_frames_refuse_what_is_no_event(line: bytes) -> None:
    with pytest.raises(RuntimeFailure, match="not an event"):
        Frames().feed(line)


def test_assembly_tells_start_output_and_end() -> None:
    assembly = Assembly()
    items = [assembly.accept(event) for event in (INIT, out(b"\xff\x00", 0), {"type": "ping"}, COMPLETE)]
    assert items == [Started("c1"), Output("stdout", b"\xff\x00"), None, None]
    assert assembly.exit == Exit(0, duration_ms=7)


def test_assembly_gives_line_framing_its_line_ends_back() -> None:
    """A daemon that knows only lines sends `a`, a lone blank line as "\\n", and `b`."""
    assembly = Assembly()
    events = [{"type": "stdout", "text": text} for text in ("a", "\n", "b")]
    outputs = [assembly.accept(event) for event in events]
    assert b"".join(o.data for o in outputs if isinstance(o, Output)) == b"a\n\nb\n"


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        ({"error": {"evalue": "3"}, "reason": "exit"}, Exit(3, "exit")),
        ({"error": {"evalue": "137"}, "reason": "oom", "signal": "SIGKILL"}, Exit(137, "oom", "SIGKILL")),
        ({"error": {"evalue": "7"}}, Exit(7, "exit")),
        ({"error": {"evalue": "no such file"}}, Exit(None, "start", error="no such file")),
        ({"error": {}}, Exit(None, "start", error="the daemon gave no reason")),
    ],
)
def test_error_events_become_exits(event: dict[str, Any], wanted: Exit) -> None:
    assembly = Assembly()
    assembly.accept({"type": "error", **event})
    assert assembly.exit == wanted


def test_exit_words() -> None:
    assert Exit(143, "timeout", "SIGTERM").timed_out
    assert Exit(137, "oom", "SIGKILL").out_of_memory
    assert Exit(143, "interrupted", "SIGTERM").interrupted
    assert Exit(137, "signal", "SIGKILL").sentence() == "the command was ended by SIGKILL"
    assert Exit(2, "exit").sentence() == "the command ended with exit code 2"
    assert "no such file" in Exit(None, "start", error="no such file").sentence()


def test_ledger_notices_missing_output() -> None:
    ledger = Ledger()
    ledger.enter(0, 10)
    with pytest.raises(RuntimeFailure, match="missing between byte 10 and byte 20"):
        ledger.enter(20, 5)


def test_ledger_knows_the_hole_of_a_cut_character() -> None:
    """`a` and half of `é` on stdout, then `err` on stderr, then the other half with more."""
    ledger = Ledger()
    ledger.enter(0, 1)
    ledger.enter(2, 3)
    assert (ledger.resume, ledger.end) == (1, 5)
    ledger.enter(1, 3)  # the held byte 1, and the bytes 5 and 6
    assert (ledger.resume, ledger.end) == (7, 7)


def test_ledger_takes_from_the_log_only_what_did_not_arrive() -> None:
    log = b"a\xc3err\xa9bcd"
    ledger = Ledger()
    ledger.enter(0, 1)
    ledger.enter(2, 3)
    assert ledger.resume == 1
    assert ledger.unseen(1, log[1:7]) == b"\xc3\xa9b"
    assert ledger.unseen(7, log[7:]) == b"cd"
    assert ledger.unseen(4, log[4:]) == b""
    assert ledger.resume == len(log)
