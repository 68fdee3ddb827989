# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One server per module, since starting one costs more than a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from structlog.typing import EventDict

from integration.api.harness import Api, start_api

StartApi = Callable[..., Api]


@pytest.fixture(autouse=True)
def log() -> Iterator[list[EventDict]]:
    """What the server logs during a test, instead of on the terminal."""
    with capture_logs(processors=[merge_contextvars]) as lines:
        yield lines


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a key and short limits."""
    proxy = {"request_timeout_seconds": 1, "connect_timeout_seconds": 1, "max_connections": 8}
    started = start_api(tmp_path_factory.mktemp("api"), proxy=proxy)
    yield started
    started.stop()


@pytest.fixture
def new_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartApi]:
    """Starts servers with other settings: `new_api(server={"insecure": True})`."""
    made: list[Api] = []

    def start(**tables: dict[str, Any]) -> Api:
        made.append(start_api(tmp_path_factory.mktemp("api"), **tables))
        return made[-1]

    yield start
    for started in made:
        started.stop()


@pytest.fixture
def box(api: Api) -> str:
    """The id of a sandbox whose port is answered by `api.upstream.handler`."""
    return api.sandbox()
