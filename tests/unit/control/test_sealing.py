# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The key of vaults: where it comes from, whom it is refused to, and what opens under it."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from casulo.control import authority
from casulo.control.authority import Authority
from casulo.control.sealing import Keyring, MissingKey
from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import Code, Conflict

SETTINGS = VaultSettings()


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    made = Keyring(SETTINGS, tmp_path)
    made.make()
    return made


def refused(keyring: Keyring) -> str:
    with pytest.raises(Conflict) as caught:
        keyring.seal("s", "vault", 1, b"x")
    assert caught.value.code == Code.VAULT_KEY
    return str(caught.value)


def test_what_is_sealed_opens_again_also_for_a_later_server(keyring: Keyring, tmp_path: Path) -> None:
    row = keyring.seal("sandbox", "vault", 3, b"secret")
    assert b"secret" not in row.content
    assert Keyring(SETTINGS, tmp_path).open(row) == b"secret"
    assert keyring.seal("sandbox", "vault", 3, b"secret").content != row.content


@pytest.mark.parametrize(
    "change", [{"holder": "other"}, {"kind": "authority"}, {"revision": 2}, {"content": b"x" * 60}]
)
def test_a_row_in_anothers_place_does_not_open(keyring: Keyring, change: dict[str, object]) -> None:
    row = replace(keyring.seal("sandbox", "vault", 3, b"secret"), **change)  # type: ignore[arg-type]
    with pytest.raises(Conflict) as caught:
        keyring.open(row)
    assert "is not what this server wrote" in str(caught.value)


def test_another_key_says_which_one_is_needed(keyring: Keyring, tmp_path: Path) -> None:
    row = keyring.seal("sandbox", "vault", 1, b"secret")
    other = Keyring(SETTINGS, tmp_path / "elsewhere")
    with pytest.raises(MissingKey):
        other.open(row)
    other.make()
    with pytest.raises(Conflict) as caught:
        other.open(row)
    assert row.key_id in str(caught.value) and "bring that key here" in str(caught.value)


def test_the_key_file_is_the_servers_alone(keyring: Keyring, tmp_path: Path) -> None:
    assert stat.S_IMODE(keyring.path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["vault-key"]
    before = keyring.path.read_bytes()
    Keyring(SETTINGS, tmp_path).make()
    assert keyring.path.read_bytes() == before
    assert keyring.path.name in keyring.describe()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o700, 0o666])
def test_a_key_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    made = Keyring(SETTINGS, tmp_path)
    made.make()
    made.path.chmod(mode)
    assert f"{mode:04o}" in refused(made)


@pytest.mark.parametrize(
    "text", [b"", b"short", base64.b64encode(b"x" * 31), b"\xff" * 44, base64.b64encode(b"x" * 33)]
)
def test_a_key_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "vault-key"
    path.write_bytes(text)
    path.chmod(0o600)
    assert "32 bytes" in refused(Keyring(SETTINGS, tmp_path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vault-key", 0o600)
    refused(Keyring(SETTINGS, tmp_path))


def test_the_environment_goes_before_the_file(keyring: Keyring, tmp_path: Path) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    settings = VaultSettings(key_env="MY_KEY").with_environment({"MY_KEY": key, "OTHER": "x"})
    given = Keyring(settings, tmp_path / "none")
    given.make()
    row = given.seal("sandbox", "vault", 1, b"secret")
    assert not (tmp_path / "none").exists()
    assert "$MY_KEY" in given.describe() and key not in given.describe() + repr(settings)
    with pytest.raises(Conflict):
        keyring.open(row)


def test_an_authority_signs_for_names_and_is_kept_whole() -> None:
    now = datetime.now(UTC)
    made = authority.make("3f2a", now)
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 0
    assert "casulo sandbox 3f2a" in certificate.subject.rfc4514_string()
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc
    key = serialization.load_pem_private_key(made.key.reveal().encode(), None)
    spki = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert key.public_key().public_bytes(*spki) == certificate.public_key().public_bytes(*spki)
    assert Authority.load(made.dump()) == made and "PRIVATE" not in repr(made)
