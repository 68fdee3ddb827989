# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The boot handshake, with a test in the place of the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casulo.model.errors import CasuloError, Code, InvalidRequest, RuntimeFailure, TimedOut
from casulo.model.sandbox import Hook, Resources, Spec
from casulo.runtimes import bootchannel
from casulo.runtimes.bootchannel import (
    BootDocument,
    Ready,
    environment,
    handshake,
    handshake_blocking,
    socket_pair,
)

DOCUMENT = BootDocument("id-1", "token", ("sleep", "1"), {"A": "b"}, listen=("tcp://127.0.0.1:0",))
READY = {"event": "ready", "version": "0.1.0", "listen": ["tcp://127.0.0.1:39123"]}


@dataclass
class Daemon:
    """The other end of the channel."""

    sock: socket.socket

    def receive(self) -> tuple[dict[str, Any], dict[str, int]]:
        """(first message, descriptors by name)."""
        data, fds, _, _ = socket.recv_fds(self.sock, 65536, 16)
        message = json.loads(data)
        return message, dict(zip(message["fds"], fds, strict=True))

    def answer(self, message: Any) -> None:
        self.sock.send(message if isinstance(message, bytes) else json.dumps(message).encode())


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Daemon]]:
    ours, theirs = socket_pair()
    with ours, theirs:
        yield ours, Daemon(theirs)


async def test_the_document_and_the_descriptors_arrive(
    ends: tuple[socket.socket, Daemon], tmp_path: Path
) -> None:
    ours, daemon = ends
    events, log = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("events", "log"))
    daemon.answer(READY)
    ready = await handshake(ours, DOCUMENT, {"log": log, "events": events}, 1)
    assert ready == Ready("0.1.0", ("tcp://127.0.0.1:39123",))
    message, fds = daemon.receive()
    assert message == {"v": 1, "fds": ["boot", "events", "log"]}
    os.write(fds["events"], b"line")
    assert (tmp_path / "events").read_bytes() == b"line"
    assert json.loads(os.read(fds["boot"], 65536)) == json.loads(DOCUMENT.encode())
    for fd in (events, log, *fds.values()):
        os.close(fd)


async def test_a_document_may_be_larger_than_any_message(ends: tuple[socket.socket, Daemon]) -> None:
    ours, daemon = ends
    daemon.answer(READY)
    large = BootDocument("id", "t", ("true",), {"BIG": "x" * 3_000_000})
    await handshake(ours, large, {}, 1)
    _, fds = daemon.receive()
    with os.fdopen(fds["boot"], "rb") as file:
        assert json.load(file)["env"]["BIG"] == "x" * 3_000_000


def test_the_document_has_the_agreed_shape() -> None:
    document = BootDocument(
        "id-1",
        "token",
        ("sh",),
        {"A": "b"},
        cwd="/w",
        uid=5,
        gid=6,
        groups=(7, 8),
        directories=("/d",),
        envs_file="/e",
        log_cap_bytes=7,
        stop_grace_ms=8,
        pre_start=Hook(("true",), 9),
        periodic=(Hook(("date",), 5, "tick", "@every 30s"),),
    )
    assert json.loads(document.encode()) == {
        "sandbox_id": "id-1",
        "access_token": "token",
        "listen": ["tcp://0.0.0.0:44772"],
        "entrypoint": ["sh"],
        "env": {"A": "b"},
        "cwd": "/w",
        "user": {"uid": 5, "gid": 6, "groups": [7, 8]},
        "directories": ["/d"],
        "envs_file": "/e",
        "log_cap_bytes": 7,
        "stop_grace_ms": 8,
        "pre_start": {"command": ["true"], "timeout_seconds": 9},
        "periodic": [{"name": "tick", "schedule": "@every 30s", "command": ["date"], "timeout_seconds": 5}],
    }
    assert "pre_start" not in json.loads(DOCUMENT.encode())


@pytest.mark.parametrize(
    ("code", "kind"),
    [(Code.INVALID_ENTRYPOINT, InvalidRequest), (Code.SANDBOX_START_FAILED, RuntimeFailure)],
)
async def test_a_refusal_keeps_its_code(
    ends: tuple[socket.socket, Daemon], code: str, kind: type[CasuloError]
) -> None:
    ours, daemon = ends
    daemon.answer({"event": "failed", "code": code, "message": "exec: no-such: not found"})
    with pytest.raises(kind) as failure:
        await handshake(ours, DOCUMENT, {}, 1)
    assert (failure.value.code, failure.value.message) == (code, "exec: no-such: not found")


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"event":"other"}', b'{"event":"ready"}'])
async def test_an_answer_that_makes_no_sense_is_a_failure(
    ends: tuple[socket.socket, Daemon], answer: bytes
) -> None:
    ours, daemon = ends
    daemon.answer(answer)
    with pytest.raises(RuntimeFailure, match="not understood"):
        await handshake(ours, DOCUMENT, {}, 1)


async def test_a_daemon_that_dies_is_noticed_at_once(ends: tuple[socket.socket, Daemon]) -> None:
    ours, daemon = ends
    waiting = asyncio.create_task(handshake(ours, DOCUMENT, {}, 30))
    await asyncio.sleep(0.02)
    daemon.sock.close()
    async with asyncio.timeout(1):
        with pytest.raises(RuntimeFailure) as failure:
            await waiting
    assert failure.value.code == Code.SANDBOX_START_FAILED


async def test_a_daemon_that_was_dead_before_is_noticed_too(ends: tuple[socket.socket, Daemon]) -> None:
    ours, daemon = ends
    daemon.sock.close()
    with pytest.raises(RuntimeFailure):
        await handshake(ours, DOCUMENT, {}, 1)


def test_silence_is_told_with_the_last_words(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    for words, wanted in (("", "status 3"), ("x" * 5000 + " out of threads\n", "out of threads")):
        log.write_text(words)
        with pytest.raises(bootchannel.Silent, match=wanted) as caught, bootchannel.told_with(log):
            raise bootchannel.died("it ended with status 3")
        assert len(str(caught.value)) < 3000


async def test_a_silent_daemon_is_given_up(ends: tuple[socket.socket, Daemon]) -> None:
    with pytest.raises(TimedOut) as failure:
        await handshake(ends[0], DOCUMENT, {}, 0.05)
    assert failure.value.code == Code.SANDBOX_START_TIMEOUT


async def test_the_blocking_form_is_the_same(ends: tuple[socket.socket, Daemon]) -> None:
    ours, daemon = ends
    with pytest.raises(TimedOut):
        await asyncio.to_thread(handshake_blocking, ours, DOCUMENT, {}, 0.05)
    daemon.receive()
    daemon.answer(READY)
    ready = await asyncio.to_thread(handshake_blocking, ours, DOCUMENT, {}, 1)
    assert ready.listen == ("tcp://127.0.0.1:39123",)


async def test_no_descriptor_is_left(ends: tuple[socket.socket, Daemon]) -> None:
    ours, daemon = ends
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        daemon.answer(READY)
        await handshake(ours, DOCUMENT, {}, 1)
        _, fds = daemon.receive()
        os.close(fds["boot"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_environment_is_layered() -> None:
    resources = Resources(1, 1, 1, 1)
    spec = Spec("host", (), resources, env={"PATH": "/mine", "OPENSANDBOX_ID": "forged", "A": "b"})
    found = environment("id-1", spec, image_env={"PATH": "/image", "LANG": "C"}, home="/h", envs_file="/e")
    assert found == {
        "PATH": "/mine",
        "HOME": "/h",
        "LANG": "C",
        "EXECD_ENVS": "/e",
        "A": "b",
        "OPENSANDBOX_ID": "id-1",
    }
