# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official SDK's egress calls, where policies are enforced."""

from __future__ import annotations

import pytest

from support.official import Official
from support.server import Server

SCENARIOS = ("policy_read_patched_deleted", "nonsense_is_refused", "without_a_policy")


@pytest.mark.parametrize("channel", ["direct", "proxy"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_official_egress(name: str, channel: str, local_server: Server, official: Official) -> None:
    official.run(f"egress.{name}", local_server, proxy=channel == "proxy")
