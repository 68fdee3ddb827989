# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A name server that answers from a table, over UDP and TCP, and writes down what it was asked."""

from __future__ import annotations

import socket
import socketserver
import struct
from collections.abc import Callable
from ipaddress import ip_address

A, NS, CNAME, TXT, AAAA, HTTPS = 1, 2, 5, 16, 28, 65
TYPES = {"A": A, "CNAME": CNAME, "TXT": TXT, "AAAA": AAAA, "HTTPS": HTTPS}
_NXDOMAIN = 3
_UDP_SIZE = 512

Table = dict[str, list[tuple[str, str]]]
"""From a name, or `*.name`, to its records: type and value."""

Note = Callable[[str, str], None]


def encode(name: str) -> bytes:
    """A name as labels."""
    labels = [label.encode() for label in name.strip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def decode(message: bytes, offset: int) -> tuple[str, int]:
    """The name at `offset`, and where it ends."""
    labels, end = [], -1
    while length := message[offset]:
        if length >= 0xC0:
            end = offset + 2 if end < 0 else end
            offset = (length & 0x3F) << 8 | message[offset + 1]
            continue
        labels.append(message[offset + 1 : offset + 1 + length].decode("latin-1"))
        offset += length + 1
    return ".".join(labels), offset + 1 if end < 0 else end


def question(name: str, kind: int, number: int = 0x1234, size: int = 0) -> bytes:
    """A query; with `size` it says by EDNS how long an answer over UDP may be."""
    message = struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 1 if size else 0)
    message += encode(name) + struct.pack(">HH", kind, 1)
    return message + (b"\0" + struct.pack(">HHIH", 41, size, 0, 0) if size else b"")


def _data(kind: str, value: str) -> bytes:
    match kind:
        case "A" | "AAAA":
            return ip_address(value).packed
        case "CNAME":
            return encode(value)
        case "HTTPS":
            return struct.pack(">H", 1) + b"\0" + struct.pack(">HH", 4, 4) + ip_address(value).packed
    text = value.encode()
    return b"".join(
        bytes([len(part)]) + part for part in (text[i : i + 255] for i in range(0, len(text), 255))
    )


def lookup(table: Table, name: str) -> list[tuple[str, str]] | None:
    """The records of a name, exact or by the nearest wildcard."""
    name = name.lower()
    if name in table:
        return table[name]
    parent = name
    while "." in parent:
        parent = parent.partition(".")[2]
        if f"*.{parent}" in table:
            return table[f"*.{parent}"]
    return None


def answer(message: bytes, table: Table, note: Note, udp: bool) -> bytes:
    """The reply to a query, cut off when it is too long for UDP."""
    number, flags, _, _, _, extra = struct.unpack(">HHHHHH", message[:12])
    name, end = decode(message, 12)
    kind = struct.unpack(">H", message[end : end + 2])[0]
    note(name, {v: k for k, v in TYPES.items()}.get(kind, str(kind)))
    asked = message[12 : end + 4]
    records = lookup(table, name)
    body, count, owner = b"", 0, name
    for record, value in records or []:
        if TYPES[record] == kind or record == "CNAME":
            data = _data(record, value)
            body += encode(owner) + struct.pack(">HHIH", TYPES[record], 1, 60, len(data)) + data
            count += 1
            if record == "CNAME":
                owner = value
                for further, target in lookup(table, value) or []:
                    if TYPES[further] == kind:
                        data = _data(further, target)
                        body += encode(owner) + struct.pack(">HHIH", kind, 1, 60, len(data)) + data
                        count += 1
    rcode = 0 if records is not None else _NXDOMAIN
    limit = struct.unpack(">H", message[end + 7 : end + 9])[0] if extra else _UDP_SIZE
    if udp and 12 + len(asked) + len(body) > limit:
        return struct.pack(">HHHHHH", number, 0x8780, 1, 0, 0, 0) + asked
    return struct.pack(">HHHHHH", number, 0x8580 | flags & 0x100 | rcode, 1, count, 0, 0) + asked + body


def udp_server(address: str, table: Table, note: Note) -> socketserver.ThreadingUDPServer:
    """Serves when `serve_forever` is called."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, sock = self.request
            sock.sendto(answer(message, table, note, udp=True), self.client_address)

    return socketserver.ThreadingUDPServer((address, 53), Handler)


def tcp_server(address: str, table: Table, note: Note) -> socketserver.ThreadingTCPServer:
    """The same over TCP."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            stream: socket.socket = self.request
            while head := stream.recv(2, socket.MSG_WAITALL):
                message = stream.recv(struct.unpack(">H", head)[0], socket.MSG_WAITALL)
                reply = answer(message, table, note, udp=False)
                stream.sendall(struct.pack(">H", len(reply)) + reply)

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    return socketserver.ThreadingTCPServer((address, 53), Handler)
