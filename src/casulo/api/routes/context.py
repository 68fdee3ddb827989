# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the routes need of the application that they belong to, as the caller of a request may use it."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from casulo.api.auth import caller_of
from casulo.api.measures import Measures
from casulo.api.tokens import Tokens
from casulo.control.access import Access
from casulo.control.lifecycle import Lifecycle
from casulo.settings import Settings


@dataclass(frozen=True)
class Application:
    """One per application, kept in its state."""

    settings: Settings
    lifecycle: Lifecycle
    measures: Measures
    tokens: Tokens


@dataclass(frozen=True)
class Context:
    """One per request. There is no way around the caller's rights: `lifecycle` is made for them."""

    settings: Settings
    lifecycle: Access
    measures: Measures
    tokens: Tokens


def context(request: Request) -> Context:
    """What the sender of `request` may use."""
    found: Application = request.app.state.application
    access = Access(found.lifecycle, caller_of(request.scope))
    return Context(found.settings, access, found.measures, found.tokens)
