# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Run by the host's root inside a sandbox's network namespace: packets that a sandbox could only send if
it were root there. Arguments: its own address, the gateway, the target, another address."""

from __future__ import annotations

import socket
import struct
import sys


def checksum(data: bytes) -> int:
    """The internet checksum."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(source: str, target: str, protocol: int, payload: bytes, fragment: int = 0) -> bytes:
    """An IPv4 packet."""
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, fragment, 64, protocol, 0,
        socket.inet_aton(source), socket.inet_aton(target),
    )  # fmt: skip
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def udp(port: int, text: bytes) -> bytes:
    """A UDP datagram without a checksum."""
    return struct.pack(">HHHH", 5555, port, 8 + len(text), 0) + text


def main() -> None:
    own, gateway, target, other = sys.argv[1:]
    echo = struct.pack(">BBHHH", 8, 0, 0, 1, 1) + b"tunnel"
    echo = echo[:2] + struct.pack(">H", checksum(echo)) + echo[4:]
    packets = [
        ip(other, target, 17, udp(123, b"forged source")),
        ip(own, target, 1, echo),
        ip(own, target, 47, b"\0\0\x08\0" + ip(own, target, 17, udp(123, b"tunnel"))),
        ip(own, target, 132, b"\0" * 12),
        ip(own, target, 17, udp(4500, b"fragment" * 4)[:24], 0x2000),
        ip(own, target, 17, (b"fragment" * 4)[16:], 3),
        ip(own, "255.255.255.255", 17, udp(67, b"broadcast")),
    ]
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    cable.bind(("eth0", 0))
    mine = cable.getsockname()[4]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    for packet in packets:
        raw.sendto(packet, (gateway, 0))
    theirs = bytes.fromhex(sys.stdin.read().strip().replace(":", ""))
    for source in (mine, b"\x02\0\0\0\0\x01"):  # its own hardware address, and a made-up one
        cable.send(theirs + source + b"\x08\0" + ip(other, target, 17, udp(123, b"forged frame")))
        claim = struct.pack(">HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 2, source, socket.inet_aton(other),
                            theirs, socket.inet_aton(gateway))  # fmt: skip
        cable.send(theirs + source + b"\x08\x06" + claim)
    six = struct.pack(
        ">IHBB16s16s", 0x60000000, 8, 17, 64, b"\xfe\x80" + b"\1" * 14, b"\x20\1\x0d\xb8" + b"\2" * 12
    )
    cable.send(theirs + mine + b"\x86\xdd" + six + udp(123, b""))


if __name__ == "__main__":
    main()
