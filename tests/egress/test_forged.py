# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Packets that a sandbox cannot send today, sent for it from its own network namespace by the host's root."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.internet import packets
from support.internet.boxes import create, network_of
from support.internet.world import World
from support.server import Server


@pytest.mark.parametrize("ground", ["container", "docker"], indirect=True)
def test_a_sandbox_with_all_rights_over_its_network_gets_nowhere(
    ground: tuple[Server, str], world: World, request: pytest.FixtureRequest
) -> None:
    server, isolation = ground
    box = create(server, {"egress": [{"action": "allow", "target": "good.test"}]})
    neighbour = create(server)
    engine = request.getfixturevalue("engine") if isolation == "docker" else None
    interface = next(
        item["ifname"]
        for item in json.loads(subprocess.check_output(["ip", "-j", "addr"]))
        if any(address.get("local") == box.gateway for address in item["addr_info"])
    )
    hardware = Path(f"/sys/class/net/{interface}/address").read_text()
    before = len(world.heard())
    command = ["nsenter", f"--net={network_of(box, engine)}", sys.executable, packets.__file__]
    arguments = [box.address, box.gateway, world.at(81), neighbour.address]
    subprocess.run([*command, *arguments], input=hardware, text=True, check=True, timeout=20)
    time.sleep(1)
    assert world.heard()[before:] == []
    assert box.logged("the source address is not the sandbox's own")
    for protocol in ("icmp", "ip/47", "ip/132", "udp"):
        assert box.logged(f'{world.at(81)}.*"protocol":"{protocol}"'), box.log()
    # The claim to have the neighbour's address has moved nothing.
    assert server.request("GET", f"/v1/sandboxes/{neighbour.id}/proxy/44772/ping").status_code < 500
    box.delete()
    neighbour.delete()
