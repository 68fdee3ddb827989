# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Machines that do not play their part hold nobody up, and fill nobody's memory."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from casulo.model.errors import RuntimeFailure
from casulo.runtimes.microvm import rehearsal

Write = Callable[[bytes], object]


def _endless(write: Write) -> None:
    while True:
        write(b"x" * (1 << 20))


def _dripping(write: Write) -> None:
    while True:
        write(b"x")
        time.sleep(0.05)


@pytest.fixture(params=[_endless, _dripping, None], ids=["endless", "dripping", "silent"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    over = threading.Event()

    class Guest(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if request.param is None:
                over.wait(10)
                return
            self.send_response(200)
            self.end_headers()
            try:
                request.param(self.wfile.write)
            except OSError:  # it was hung up on
                over.set()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guest)
    monkeypatch.setattr(rehearsal, "EXECD_PORT", server.server_address[1])
    monkeypatch.setattr(rehearsal, "_SECONDS", 0.5)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield over
    over.set()
    server.shutdown()
    server.server_close()


def test_it_is_over_in_time_and_is_told(machine: threading.Event) -> None:
    with pytest.raises(RuntimeFailure, match="rehearse"):
        rehearsal.Part("127.0.0.1", "token").play()
