# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Encryption of what the store keeps of vaults: AES-256-GCM under one key of the server.

What is sealed is bound to its holder, kind and revision, so that a row put in the place of another one
does not open. The key is looked for when it is needed first.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from casulo.control.vaultsettings import KEY_FILE, VaultSettings
from casulo.model.errors import Code, Conflict
from casulo.store.sealed import Sealed

_BYTES = 32
_NONCE = 12


class Keyring:
    """The server's key. Blocking, but only by reading a small file once."""

    def __init__(self, settings: VaultSettings, data: Path) -> None:
        self._settings = settings
        self.path = settings.key_file or data / KEY_FILE
        self._key: bytes | None = None

    def seal(self, holder: str, kind: str, revision: int, content: bytes) -> Sealed:
        """A row that only `open` can read."""
        key, nonce = self._held(), secrets.token_bytes(_NONCE)
        sealed = AESGCM(key).encrypt(nonce, content, _bound(holder, kind, revision))
        return Sealed(holder, kind, revision, key_id(key), nonce + sealed)

    def open(self, row: Sealed) -> bytes:
        """What was sealed. Conflict when it was done under another key, or the row is not what it was."""
        key = self._held()
        if row.key_id != key_id(key):
            raise self._unusable(
                f"the credentials of {row.holder} were sealed under the key {row.key_id}, "
                f"and this server has {key_id(key)}",
                "bring that key here",
            )
        nonce, sealed = row.content[:_NONCE], row.content[_NONCE:]
        try:
            return AESGCM(key).decrypt(nonce, sealed, _bound(row.holder, row.kind, row.revision))
        except InvalidTag:
            raise Conflict(
                f"the sealed {row.kind} of {row.holder} is not what this server wrote",
                code=Code.VAULT_KEY,
                hint="restore the database from a backup, or make the vault anew",
            ) from None

    def make(self) -> None:
        """Make the key file unless there is a key."""
        if self._key is None and self._given() is None:
            with contextlib.suppress(FileExistsError):
                _write(self.path, secrets.token_bytes(_BYTES))

    def describe(self) -> str:
        """Where the key is and which one it is, for people; '' when there is none yet."""
        try:
            key = self._held()
        except MissingKey:
            return ""
        place = f"${self._settings.key_env}" if self._given() is not None else str(self.path)
        return f"{place}, key {key_id(key)}"

    def _held(self) -> bytes:
        if self._key is None:
            given = self._given()
            self._key = self._read() if given is None else self._parsed(given, f"${self._settings.key_env}")
        return self._key

    def _given(self) -> bytes | None:
        held = self._settings.environment.get(self._settings.key_env)
        return None if held is None else held.reveal().encode()

    def _read(self) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise MissingKey(
                f"the key for credentials, {self.path}, is missing",
                code=Code.VAULT_KEY,
                hint=f"bring it here, or give it as ${self._settings.key_env}",
            ) from None
        except OSError as error:
            raise self._unusable(f"the key {self.path} cannot be read: {error.strerror}") from None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _private(status):
                mode = stat.S_IMODE(status.st_mode)
                raise self._unusable(
                    f"{self.path} has mode {mode:04o} and owner {status.st_uid}: others could read the key",
                    f"chown it to the server's user and chmod 600 {self.path}",
                )
            return self._parsed(file.read(1024), str(self.path))

    def _parsed(self, text: bytes, where: str) -> bytes:
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != _BYTES:
            raise self._unusable(
                f"{where} does not hold {_BYTES} bytes in base64", "`openssl rand -base64 32` makes some"
            )
        return key

    def _unusable(self, message: str, hint: str = "") -> Conflict:
        return Conflict(message, code=Code.VAULT_KEY, hint=hint)


def _private(status: os.stat_result) -> bool:
    ours = status.st_uid in (0, os.geteuid())
    return stat.S_ISREG(status.st_mode) and ours and not status.st_mode & 0o177


class MissingKey(Conflict):
    """There is no key, which is fine as long as nothing was sealed."""


def key_id(key: bytes) -> str:
    """Names a key without giving it away."""
    return hashlib.sha256(b"casulo vault key id\0" + key).hexdigest()[:12]


def _bound(holder: str, kind: str, revision: int) -> bytes:
    return f"casulo/1/{kind}/{holder}/{revision}".encode()


def _write(path: Path, key: bytes) -> None:
    """Whole or not at all: written aside, and linked to its name if that is free."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(base64.b64encode(key) + b"\n")
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    finally:
        draft.unlink()
