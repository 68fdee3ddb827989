# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Metadata keys and values: Kubernetes label rules, with one prefix reserved."""

from __future__ import annotations

import re
from collections.abc import Mapping

from casulo.model.errors import Code, InvalidRequest

RESERVED_PREFIX = "opensandbox.io"
_NAME = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PREFIX = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")


def check(metadata: Mapping[str, str], *, code: str = Code.INVALID_CREATE_LABEL) -> None:
    """Raise InvalidRequest with `code` at the first key or value that breaks the rules."""
    for key, value in metadata.items():
        check_key(key, code=code)
        if value and not _NAME.fullmatch(value):
            raise _broken(code, f"value {value!r} of {key!r}")


def check_key(key: str, *, code: str = Code.INVALID_CREATE_LABEL) -> None:
    """The key half of `check`; used alone when a patch removes a key."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix)):
        raise _broken(code, f"prefix of key {key!r}")
    if not _NAME.fullmatch(name):
        raise _broken(code, f"key {key!r}")
    if prefix == RESERVED_PREFIX or prefix.endswith("." + RESERVED_PREFIX):
        raise InvalidRequest(
            f"metadata key {key!r} uses the reserved prefix {RESERVED_PREFIX}/",
            code=code,
            hint="choose another prefix or none",
        )


def _broken(code: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"metadata {what} is not a label",
        code=code,
        hint="use up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    )
