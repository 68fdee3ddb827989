# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A text that must not be seen: it has no readable form, in logs, errors and tracebacks alike."""

from __future__ import annotations

import hmac
from typing import Any, NoReturn


class Secret:
    """Holds a value; only `reveal` gives it away, so a search for that word finds every place that does."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __repr__(self) -> str:
        return "Secret(hidden)"

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down")

    @staticmethod
    def of(value: Any) -> Secret | None:
        """None for what is no text."""
        return Secret(value) if isinstance(value, str) else None
