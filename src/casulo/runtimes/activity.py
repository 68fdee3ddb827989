# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Asking a sandbox's daemon whether anybody uses it. Blocking."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass

from casulo.model.errors import RuntimeFailure
from casulo.model.sandbox import Handle

_SECONDS = 5.0
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Activity:
    """`busy` while a request is served or a command runs; else for how long none has been."""

    busy: bool
    idle_seconds: float


def ask(handle: Handle) -> Activity:
    """RuntimeFailure when the daemon does not say."""
    connection = http.client.HTTPConnection(handle.host, handle.port, timeout=_SECONDS)
    try:
        connection.request("GET", "/v1/internal/activity", headers={"X-EXECD-ACCESS-TOKEN": handle.token})
        answer = connection.getresponse()
        told = json.loads(answer.read(_MOST_BYTES))
        return Activity(bool(told["requests"] or told["commands"]), int(told["idle_ms"]) / 1000)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RuntimeFailure(f"the sandbox's daemon does not say whether it is used: {error}") from error
    finally:
        connection.close()
