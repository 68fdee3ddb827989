# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cells that are stopped at odd moments: while their context starts, and by a caller whose handler failed."""

from __future__ import annotations

import pytest

from casulo.client import AsyncSandbox
from support.server import Server

ENDLESS = {
    "python": "import time; time.sleep(60)",
    "javascript": "await new Promise(() => {})",
    "bash": "sleep 60",
}


@pytest.fixture(params=["fake", "local"])
def server(request: pytest.FixtureRequest) -> Server:
    """Where there are programs for all languages."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.mark.parametrize("language", ENDLESS)
async def test_stop_during_the_start_costs_no_context(box: AsyncSandbox, language: str) -> None:
    context = await box.code.create_context(language)
    stopped = await box.code.run(ENDLESS[language], context=context, timeout=0.001)
    assert stopped.error is not None and stopped.error.name == "CodeTimeoutError"
    assert not stopped.error.context_died and not stopped.stderr
    after = await box.code.run("x=1", context=context)
    assert after.ok and not after.fresh


async def test_context_is_free_after_a_handler_that_failed(box: AsyncSandbox) -> None:
    def broken(_: object) -> None:
        raise LookupError

    context = await box.code.create_context()
    with pytest.raises(LookupError):
        await box.code.run("print(1)\nimport time; time.sleep(60)", context=context, on_stdout=broken)
    assert (await box.code.run("1", context=context)).text == "1"
