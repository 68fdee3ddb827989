# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The certificate authority of one sandbox, which nobody but that sandbox trusts. Its key stays outside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from casulo.model.secret import Secret

_LIFE = timedelta(days=3650)
"""Longer than sandboxes live; the leaf certificates that it signs are short-lived."""

_EARLIER = timedelta(days=1)
"""Clocks inside may be behind, also those of processes that were kept in a snapshot."""


@dataclass(frozen=True)
class Authority:
    """Certificate and key, both as PEM."""

    certificate: str
    key: Secret

    def dump(self) -> bytes:
        """For sealing."""
        return json.dumps({"certificate": self.certificate, "key": self.key.reveal()}).encode()

    @classmethod
    def load(cls, content: bytes) -> Authority:
        """What was dumped."""
        told = json.loads(content)
        return cls(told["certificate"], Secret(told["key"]))


def make(sandbox_id: str, now: datetime) -> Authority:
    """A new one. It may sign for any name: which names are intercepted, the bindings decide."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"casulo sandbox {sandbox_id}"[:64])])
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(public, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Authority(certificate.public_bytes(serialization.Encoding.PEM).decode(), Secret(private.decode()))
