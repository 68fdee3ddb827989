# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The host-side packet filter that every sandbox is behind, written once when the server starts.

The rules match the interface name's prefix, so that a sandbox is covered from its first packet and
nothing is written per sandbox. Whatever a policy allows later, these always hold: no other sandbox,
no service of the host, no private, link-local or metadata address, no forged source address.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path

from casulo.model.errors import Code, RuntimeFailure, Unsupported

CLOSED = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
]
"""IPv4 networks that are not public: RFC 6890 special-purpose ones, multicast and reserved."""

JUDGED, JUDGED_MASK = 0xCA500000, 0xFFF00000
"""Marks of connections that the egress process's rules have judged; the low bits are theirs."""

ANY_SANDBOX = "csl"
"""Interface names of all Casulo servers start so; it keeps the sandboxes of two servers apart."""


@dataclass(frozen=True)
class Filter:
    """Plan of one server's table."""

    table: str
    prefix: str
    network: IPv4Network
    resolvers: tuple[IPv4Address, ...]
    outbound: bool
    policed: tuple[str, ...] = ()
    """Interfaces of sandboxes under a policy: they go the direct way only where that was judged."""

    def text(self) -> str:
        """The table in nft's language; loading it replaces an earlier one atomically."""
        return f"""
table inet {self.table}
delete table inet {self.table}
table inet {self.table} {{
  set closed {{ type ipv4_addr; flags interval; elements = {{ {", ".join(CLOSED)} }} }}
  {self._resolver_set()}
  set policed {{ type ifname; {self._policed()}}}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "{self.prefix}*" ct state established,related accept
    iifname @policed ct mark & {JUDGED_MASK:#x} == {JUDGED:#x} accept
    iifname "{self.prefix}*" drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{self.prefix}*" goto from_sandbox
    oifname "{self.prefix}*" ct state established,related accept
    oifname "{self.prefix}*" drop
  }}
  chain from_sandbox {{
    ip saddr != {self.network} drop
    meta nfproto ipv6 drop
    ct state invalid drop
    oifname "{ANY_SANDBOX}*" drop
    iifname @policed goto from_policed
    {self._resolver_rule()}
    ip daddr @closed reject with icmpx admin-prohibited
    {"accept" if self.outbound else "reject with icmpx admin-prohibited"}
  }}
  chain from_policed {{
    ct mark & {JUDGED_MASK:#x} == {JUDGED:#x} accept
    reject with icmpx admin-prohibited
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname "{self.prefix}*" masquerade
  }}
}}
"""

    def _policed(self) -> str:
        listed = ", ".join(f'"{name}"' for name in self.policed)
        return f"elements = {{ {listed} }} " if listed else ""

    def _resolver_set(self) -> str:
        if not self.resolvers:
            return ""
        listed = ", ".join(map(str, self.resolvers))
        return f"set resolvers {{ type ipv4_addr; elements = {{ {listed} }} }}"

    def _resolver_rule(self) -> str:
        if not self.resolvers or not self.outbound:
            return ""
        return "ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept"

    def apply(self) -> None:
        """Load the table. Unsupported when nft is absent, RuntimeFailure when it refuses."""
        _nft(self.text())

    def remove(self) -> None:
        """Delete the table; it is no error when there is none."""
        _nft(f"table inet {self.table}\ndelete table inet {self.table}\n")


def _nft(script: str) -> None:
    try:
        done = subprocess.run(["nft", "-f", "-"], input=script, text=True, capture_output=True, timeout=30)
    except FileNotFoundError as error:
        raise Unsupported(
            "the packet filter tool `nft` is not installed, so sandboxes could not be kept apart",
            code=Code.HOST_UNSUPPORTED,
            hint="apt-get install nftables",
        ) from error
    if done.returncode != 0:
        raise RuntimeFailure(f"nft refused the sandbox rules: {done.stderr.strip()}")


def host_resolvers() -> tuple[IPv4Address, ...]:
    """The name servers that this host uses, without those that only it can reach."""
    for path in ("/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"):
        found = _resolvers_in(Path(path))
        if found:
            return found
    return ()


def _resolvers_in(path: Path) -> tuple[IPv4Address, ...]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ()
    words = [line.split() for line in lines if line.startswith("nameserver")]
    return tuple(a for w in words if len(w) > 1 and (a := _usable(w[1])))


def _usable(text: str) -> IPv4Address | None:
    try:
        address = IPv4Address(text)
    except AddressValueError:  # an IPv6 server, which sandboxes cannot reach
        return None
    return None if address.is_loopback else address


def allow_forwarding() -> None:
    """Let IPv4 packets pass between sandboxes' interfaces and the interface of the default route."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination = line.split()[:2]
        if destination == "00000000":
            (Path("/proc/sys/net/ipv4/conf") / interface / "forwarding").write_text("1")
