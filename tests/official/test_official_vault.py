# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official SDK's vault calls, where credentials are injected."""

from __future__ import annotations

import pytest

from support.official import Official
from support.server import Server


@pytest.mark.parametrize("channel", ["direct", "proxy"])
@pytest.mark.parametrize("name", ["every_type_and_its_revisions", "mistakes_are_told"])
def test_official_vault(name: str, channel: str, local_server: Server, official: Official) -> None:
    official.run(f"vault.{name}", local_server, proxy=channel == "proxy")
