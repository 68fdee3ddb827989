# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the routes need of the application that they belong to."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from casulo.control.lifecycle import Lifecycle
from casulo.settings import Settings


@dataclass(frozen=True)
class Context:
    """One per application, kept in its state."""

    settings: Settings
    lifecycle: Lifecycle


def context(request: Request) -> Context:
    """The context of the application that got `request`."""
    found: Context = request.app.state.context
    return found
