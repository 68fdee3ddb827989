# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ports that an engine publishes and others take: tried again, and told as a lack of them."""

from __future__ import annotations

from typing import Any

import pytest

from casulo.model.errors import RuntimeFailure, Unavailable
from casulo.runtimes.docker import attach

TAKEN = "failed programming external connectivity: Bind for 0.0.0.0:40001 failed: port is already allocated"
USED = "failed to bind host port for 127.0.0.1:40002: address already in use"
NONE = "driver failed programming external connectivity: all ports are allocated"
OTHER = "OCI runtime create failed: exec format error"


@pytest.mark.parametrize(
    ("said", "tries", "ends"),
    [
        ([TAKEN, USED], 3, "ready"),
        ([TAKEN, TAKEN, USED, TAKEN], 3, Unavailable),
        ([NONE, NONE], 1, Unavailable),
        ([TAKEN, NONE], 2, Unavailable),
        ([OTHER], 1, RuntimeFailure),
        ([TAKEN, OTHER], 2, RuntimeFailure),
    ],
)
async def test_b039_a_port_that_is_taken_is_tried_again_and_a_lack_of_ports_is_said(
    monkeypatch: pytest.MonkeyPatch, said: list[str], tries: int, ends: Any
) -> None:
    calls: list[object] = []

    async def once(*arguments: object) -> str:
        calls.append(arguments)
        if len(calls) <= len(said):
            raise RuntimeFailure(f"Docker could not start the container: {said[len(calls) - 1]}")
        return "ready"

    monkeypatch.setattr(attach, "_once", once)
    booting: Any = attach.boot(None, None, None, 5, None)  # type: ignore[arg-type]
    if ends == "ready":
        assert await booting == "ready"
    else:
        with pytest.raises(ends) as failure:
            await booting
        assert ends is RuntimeFailure or (failure.value.retry_after and said[tries - 1] in str(failure.value))
    assert len(calls) == tries
