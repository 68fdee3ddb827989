# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A PostgreSQL server of our own for one test session, reached by a socket in its folder."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TIMEOUT = 90.0
_SETTINGS = ("listen_addresses=", "fsync=off", "max_connections=60", "shared_buffers=16MB")


@dataclass
class Postgres:
    """A running server. Each test gets a database of its own."""

    folder: Path
    programs: Path
    process: subprocess.Popen[bytes] | None = None
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def database(self) -> str:
        """The address of a new and empty database."""
        name = f"test{next(self._serial)}"
        with _driver().connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        """How it is reached."""
        return f"postgresql://casulo@/{name}?host={self.folder}"

    def cut(self) -> None:
        """End every connection, as a restart or a network does."""
        with _driver().connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            )

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [word for setting in _SETTINGS for word in ("-c", setting)]
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as_nobody(self.folder), *command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, and with it every connection."""
        if self.process is not None:
            self.process.terminate()
            self.cut_quietly()
            self.process.wait(_TIMEOUT)
            self.process = None

    def cut_quietly(self) -> None:
        """A server that is asked to end waits for its clients; SIGINT tells it not to."""
        assert self.process is not None
        subprocess.run(["kill", "-INT", str(self.process.pid)], check=False, timeout=_TIMEOUT)

    def _answers(self) -> bool:
        try:
            _driver().connect(self.url("postgres"), connect_timeout=5).close()
        except _driver().OperationalError:
            return False
        return True


def why_not() -> str:
    """Empty when one can be started here."""
    return "" if _programs() else "PostgreSQL is not installed"


@contextmanager
def running() -> Iterator[Postgres]:
    """Make one, and at the end remove every trace of it."""
    programs = _programs()
    assert programs
    with tempfile.TemporaryDirectory(prefix="casulo-postgres-") as place:
        folder = Path(place)
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
        command = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "casulo", "-A", "trust", "-N"]
        done = subprocess.run(
            [*_as_nobody(folder), *command], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
        assert done.returncode == 0, done.stderr
        made = Postgres(folder, programs)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def _driver() -> Any:
    """Loaded when a test wants it: a run without such tests shall not need it."""
    import psycopg

    return psycopg


def _programs() -> Path | None:
    """Debian keeps them off the search path, by version."""
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    found = str(kept[-1]) if kept else shutil.which("initdb")
    return Path(found).parent if found else None


def _as_nobody(folder: Path) -> list[str]:
    """It refuses to run as root. It ends with a test run that is killed."""
    if os.geteuid() != 0:
        return ["setpriv", "--pdeathsig", "INT"]
    user = pwd.getpwnam("nobody")
    ids = ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig", "INT", "env", f"HOME={folder}"]
