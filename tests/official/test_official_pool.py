# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official SDK's own pools, over sandboxes that are started for it and over a pool of the server."""

from __future__ import annotations

from collections.abc import Callable

from support.official import Official
from support.server import Server


def test_official_pool(new_server: Callable[..., Server], official: Official) -> None:
    pools = "[pools.named.ahead]\nimage = 'host'\nmin = 2\nmax = 2\n"
    server = new_server("local", pools)
    official.run("pools.life", server, proxy=True, image=server.image)
