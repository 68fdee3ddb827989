# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a caller will do first, done once with a machine that has no caller yet.

An emulated machine translates each piece of its code when that runs for the first time. So its daemon is
started for a sandbox that never was, and runs commands as our clients ask for them. The program that is run
is the daemon's own: an image's would run as root, before any policy and limit.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from casulo.model.errors import RuntimeFailure
from casulo.model.sandbox import EXECD_PORT
from casulo.runtimes import bootchannel

_SECONDS = 30.0
_TOKEN_HEADER = "X-EXECD-ACCESS-TOKEN"
_MOST_BYTES = 64 << 10
_PROGRAM = ("/proc/1/exe", "-version")
_COMMANDS: tuple[Mapping[str, str], ...] = (
    {"EXECD-STREAM-FRAMING": "raw"},
    {},
    {"EXECD-STREAM-FRAMING": "raw"},
)
"""Headers. The last comes when everything is there, as later ones will."""


@dataclass(frozen=True)
class Part:
    """A machine's address, and the token that is asked for during its rehearsal only."""

    address: str
    token: str

    def document(self, name: str) -> bootchannel.BootDocument:
        """A sandbox whose entrypoint ends at once."""
        variables = {"PATH": bootchannel.DEFAULT_PATH, "HOME": "/root"}
        return bootchannel.BootDocument(name, self.token, _PROGRAM, variables, log_cap_bytes=0)

    def play(self) -> None:
        """Run the commands, in 30 s at most. RuntimeFailure when the machine does not do its part. Blocks."""
        line = http.client.HTTPConnection(self.address, EXECD_PORT, timeout=_SECONDS)
        line.auto_open = 0  # a second connection would have no end set to it
        with contextlib.closing(line):
            try:
                line.connect()
                with _ended_after(_SECONDS, line.sock):
                    for headers in _COMMANDS:
                        self._ask(line, headers)
            except (OSError, http.client.HTTPException) as error:
                raise RuntimeFailure(f"a machine did not rehearse: {error!r}") from error

    def _ask(self, line: http.client.HTTPConnection, more: Mapping[str, str]) -> None:
        headers = {"Content-Type": "application/json", _TOKEN_HEADER: self.token, **more}
        line.request("POST", "/command", json.dumps({"argv": _PROGRAM}), headers)
        with line.getresponse() as answer:
            told = answer.read(_MOST_BYTES)
        if answer.status != 200:
            raise RuntimeFailure(f"a machine refused to rehearse: {told[:200]!r}")


@contextlib.contextmanager
def _ended_after(seconds: float, line: socket.socket) -> Iterator[None]:
    """Its own time limit is for each piece that comes."""

    def end() -> None:
        with contextlib.suppress(OSError):  # it is closed
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
