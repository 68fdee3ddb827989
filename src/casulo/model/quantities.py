# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Quantities as Kubernetes writes them: `500m` CPUs, `2Gi` of memory, plain counts."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from casulo.model.errors import Code, InvalidRequest

_SUFFIXES: dict[str, Fraction] = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{s: Fraction(1000) ** (i + 1) for i, s in enumerate(["k", "M", "G", "T", "P", "E"])},
    **{s: Fraction(1024) ** (i + 1) for i, s in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])},
}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([a-zA-Z]*)")


@lru_cache(maxsize=256)  # every create has the same few
def parse(name: str, text: str) -> Fraction:
    """The exact value of `text`; InvalidRequest names the field when it is not a quantity."""
    match = _PATTERN.fullmatch(text.strip())
    suffix = match.group(2) if match else ""
    if match is None or suffix not in _SUFFIXES:
        raise InvalidRequest(
            f"{name}: {text!r} is not a quantity",
            code=Code.INVALID_PARAMETER,
            hint="write a number with an optional suffix, such as 500m, 2, 512Mi or 2Gi",
        )
    return Fraction(match.group(1)) * _SUFFIXES[suffix]


def cpu_millis(text: str) -> int:
    """CPU quantity in thousandths of a core."""
    return _positive("cpu", text, parse("cpu", text) * 1000)


def whole_bytes(name: str, text: str) -> int:
    """Memory or disk quantity in bytes."""
    return _positive(name, text, parse(name, text))


def count(name: str, text: str) -> int:
    """A plain count, such as a number of processes."""
    return _positive(name, text, parse(name, text))


MAXIMUM = 2**53
"""Beyond any machine, and exact in every program that reads the number."""


def _positive(name: str, text: str, value: Fraction) -> int:
    if value > MAXIMUM:
        raise InvalidRequest(
            f"{name}: {text!r} is more than any machine has",
            code=Code.INVALID_PARAMETER,
            hint="look at the suffix: Mi and Gi are usual for memory",
        )
    if value < 1:
        raise InvalidRequest(
            f"{name}: {text!r} is too small",
            code=Code.INVALID_PARAMETER,
            hint="the smallest CPU share is 1m; other amounts start at 1",
        )
    return int(value)
