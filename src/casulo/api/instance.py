# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What one running server owns in its data directory: lock, API key, and the note where it listens."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from casulo import __version__
from casulo.model.errors import Code, Conflict, InvalidRequest

LOCK, KEY, NOTE, IDENTITY = "lock", "api-key", "server.json", "server-id"
DATABASE = "casulo.db"


class Home:
    """A data directory that this process has locked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def key_file(self) -> Path:
        """Where the API key of this server is kept."""
        return self.path / KEY

    def api_key(self) -> str:
        """The key that the first start made; only the owner of the directory can read it."""
        try:
            descriptor = os.open(self.key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return self._existing_key()
        key = secrets.token_urlsafe(32)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
        return key

    def _existing_key(self) -> str:
        key = self.key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise InvalidRequest(
                f"{self.key_file} is empty",
                code=Code.INVALID_PARAMETER,
                hint="delete it, and the next start makes a new key",
            )
        return key

    def identity(self) -> str:
        """This server's name among those that share a store: made once, kept in the directory."""
        path = self.path / IDENTITY
        if not path.exists():
            draft = path.with_suffix(".new")
            draft.write_text(f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}\n")
            draft.replace(path)
        return path.read_text().strip()

    def forget_identity(self) -> None:
        """It was never used."""
        (self.path / IDENTITY).unlink()

    @property
    def database(self) -> Path:
        """The store of a server that shares none."""
        return self.path / DATABASE

    @property
    def shared_before(self) -> bool:
        """Whether the server of this directory has had a place in a store that servers share."""
        return (self.path / IDENTITY).exists()

    def announce(self, url: str) -> None:
        """Leave a note by which clients on this machine find the server."""
        draft = self.path / f"{NOTE}.new"
        draft.write_text(json.dumps({"url": url, "pid": os.getpid(), "version": __version__}) + "\n")
        draft.replace(self.path / NOTE)

    def retract(self) -> None:
        """Take the note away."""
        (self.path / NOTE).unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[Home]:
    """Lock `path`, making it if need be; Conflict names the process that has it locked."""
    with _lock_file(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(path, lock.read().strip()) from None
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield Home(path)


def _lock_file(path: Path) -> TextIO:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o600), "r+")
    except OSError as error:
        raise InvalidRequest(
            f"the data directory {path} cannot be used: {error.strerror}",
            code=Code.INVALID_PARAMETER,
            hint="choose one that you may write with [server] data_dir or CASULO_HOME",
        ) from None


def _taken(path: Path, pid: str) -> Conflict:
    return Conflict(
        f"another server (process {pid or 'unknown'}) uses {path}",
        code=Code.SERVER_ALREADY_RUNNING,
        hint="stop it first, or give this one another directory with CASULO_HOME",
    )
