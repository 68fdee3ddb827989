# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where values of credentials come from that are not given: variables, files and commands of the server.

Each is allowed by configuration or refused. What was read once is used on when reading fails later, so that a
file which is being replaced disturbs nobody; deleting the credential is how one takes it back.
"""

from __future__ import annotations

import os
import stat
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import CasuloError, Code, Forbidden, InvalidRequest
from casulo.model.keys import GUEST, Caller, Scope
from casulo.model.secret import Secret
from casulo.model.vault import Source

_LONGEST = 64 << 10
_PAUSE_SECONDS = 5.0
"""A command that failed is not run again before."""

_CHILD_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Read:
    """What was found last, and what has to be unchanged for it to hold."""

    value: Secret
    stamp: tuple[float, ...]


class Sources:
    """Blocking; call it from threads."""

    def __init__(self, settings: VaultSettings) -> None:
        self._settings = settings
        self._known: dict[Source, _Read] = {}
        self._failed: set[Source] = set()
        self._refused_until: dict[Source, float] = {}
        self._lock = threading.Lock()

    def check(self, source: Source, caller: Caller) -> None:
        """Forbidden unless the configuration lets this caller use it."""
        if source.type == "inline":
            return
        owners = self._settings.owners
        if caller == GUEST:  # the token of a sandbox's port may be in many hands
            raise Forbidden(
                f"sources of the type {source.type} need the server's API key",
                code=Code.VAULT_SOURCE,
                hint="send it along in the header OPEN-SANDBOX-API-KEY",
            )
        if not (caller.may(Scope.ADMIN) or caller.owner in owners or "*" in owners):
            raise Forbidden(
                f"sources of the type {source.type} are not for the key {caller.name!r}",
                code=Code.VAULT_SOURCE,
                hint="give the value inline, or have the owner added to [vault] owners",
            )
        self._allowed(source)

    def read(self, source: Source) -> Secret:
        """The value as it is now; the last one that was read where that fails."""
        if source.value is not None:
            return source.value
        with self._lock:
            known = self._known.get(source)
            try:
                fresh = self._look(source, known)
            except CasuloError as error:
                if known is None:
                    raise
                if source not in self._failed:
                    _log.warning("vault.source_failed", source=source.type, error=error.message)
                    self._failed.add(source)
                return known.value
            self._failed.discard(source)
            self._known[source] = fresh
            return fresh.value

    def _allowed(self, source: Source) -> None:
        settings = self._settings
        if source.type == "env" and source.env not in settings.env:
            raise _refused(f"the variable {source.env!r}", "[vault] env")
        if source.type == "exec" and source.command not in settings.commands:
            raise _refused(f"the command {source.command[0]!r} with these arguments", "[vault] commands")
        if source.type == "file":
            self._resolved(source.file)

    def _resolved(self, name: str) -> Path:
        """The file itself; links may lead out of an allowed directory, and then it is none of ours."""
        try:
            path = Path(name).resolve(strict=False)
            folders = [folder.resolve(strict=False) for folder in self._settings.files]
        except (OSError, RuntimeError):
            raise _refused(f"the file {name!r}", "[vault] files") from None
        if not Path(name).is_absolute() or not any(path.is_relative_to(folder) for folder in folders):
            raise _refused(f"the file {name!r}", "[vault] files")
        return path

    def _look(self, source: Source, known: _Read | None) -> _Read:
        self._allowed(source)
        if source.type == "env":
            found = self._settings.environment.get(source.env)
            if found is None:
                raise _unreadable(f"the variable {source.env} of the server is not set")
            return _Read(found, ())
        return self._file(source, known) if source.type == "file" else self._command(source, known)

    def _file(self, source: Source, known: _Read | None) -> _Read:
        path = self._resolved(source.file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                stamp = _stamp(status)
                if not stat.S_ISREG(status.st_mode):
                    raise _unreadable(f"{source.file} is no regular file")
                if known is not None and known.stamp == stamp:
                    return known
                return _Read(_value(file.read(_LONGEST + 1), source.file), stamp)
        except OSError as error:
            raise _unreadable(f"{source.file} cannot be read: {error.strerror}") from None

    def _command(self, source: Source, known: _Read | None) -> _Read:
        now = time.monotonic()
        if known is not None and now < known.stamp[0]:
            return known
        name = source.command[0]
        if now < self._refused_until.get(source, 0.0):
            raise _unreadable(f"the command {name} failed a moment ago")
        self._refused_until[source] = now + _PAUSE_SECONDS
        try:
            ended = subprocess.run(
                source.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_CHILD_ENVIRONMENT,
                cwd="/",
                timeout=self._settings.command_timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _unreadable(f"the command {name} did not end in time") from None
        except OSError as error:
            raise _unreadable(f"the command {name} cannot be run: {error.strerror}") from None
        if ended.returncode != 0:
            raise _unreadable(f"the command {name} ended with {ended.returncode}")
        value = _value(ended.stdout, name)
        del self._refused_until[source]
        return _Read(value, (now + self._settings.command_ttl_seconds,))


def _stamp(status: os.stat_result) -> tuple[float, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _value(content: bytes, where: str) -> Secret:
    """Without the line's end that editors and commands put there."""
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise _unreadable(f"what {where} gives is no UTF-8") from None
    if not text or len(content) > _LONGEST or "\0" in text:
        raise _unreadable(
            f"what {where} gives is empty, longer than {_LONGEST >> 10} KiB, or has a NUL in it"
        )
    return Secret(text)


def _refused(what: str, where: str) -> Forbidden:
    return Forbidden(
        f"{what} is not allowed as the source of a credential",
        code=Code.VAULT_SOURCE,
        hint=f"the server's configuration says what is, in {where}",
    )


def _unreadable(message: str) -> InvalidRequest:
    return InvalidRequest(message, code=Code.VAULT_SOURCE, hint="mend it on the server, and try again")
