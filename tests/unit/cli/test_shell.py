# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb shell` behind a terminal of the test's own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from .conftest import Osb


class Screen:
    """Runs `osb` behind a pseudo-terminal of 100 columns and 30 rows."""

    def __init__(self, osb: Osb, *words: str) -> None:
        self.seen = b""
        self._master, slave = pty.openpty()
        self.resize(100, 30)
        self.process = subprocess.Popen(
            osb.command(*words),
            env=osb.environment | osb.extra,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 4096)

    def end(self) -> int:
        code = self.process.wait(20)
        os.close(self._master)
        return code


def test_a_conversation_with_keys_and_sizes(osb: Osb, box: str) -> None:
    screen = Screen(osb, "shell", box, "--", "PS1='> ' exec sh -i")
    screen.wait_for("> ")
    screen.type("stty size\r")
    screen.wait_for("30 100")
    screen.resize(132, 43)
    screen.type("sleep 0.3; stty size\r")
    screen.wait_for("43 132")
    screen.type("sleep 60\r")
    time.sleep(0.5)
    screen.type("\x03")  # Ctrl-C ends the sleep, not the shell and not osb
    screen.type("echo al''ive\r")
    screen.wait_for("alive")
    screen.type("exit 7\r")
    assert screen.end() == 7


def test_without_a_terminal_it_says_what_to_use(osb: Osb, box: str) -> None:
    done = osb.run("shell", box)
    assert done.returncode == 2
    assert b"osb command run" in done.stderr
