# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Keeping the members of one bridge apart. What they say to each other never reaches the packet filter."""

from __future__ import annotations

import errno

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

_GONE = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)


def isolate_ports(bridge: str) -> None:
    """Let the kernel pass nothing from one port of the bridge to another; its own address is reached still.

    A port that goes away meanwhile is no error.
    """
    with IPRoute() as netlink:
        for index in netlink.link_lookup(ifname=bridge):
            for port in netlink.get_links():
                if port.get_attr("IFLA_MASTER") == index:
                    _isolate(netlink, port["index"])


def _isolate(netlink: IPRoute, port: int) -> None:
    try:
        netlink.brport("set", index=port, isolated=1)
    except NetlinkError as error:
        if error.code not in _GONE or netlink.link_lookup(index=port):
            raise
