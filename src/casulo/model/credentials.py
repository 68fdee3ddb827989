# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Whom a registry shall take us for. Lives as long as the call that brought it; no store has it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Credentials:
    """A login at an image registry."""

    username: str
    password: str = field(repr=False)
