# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The process inside the namespace: starts every server of the small internet, then waits to be ended.

Arguments: a JSON file that says what to serve, and a file for lines about what happened.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from support.internet import dns, web


def main() -> None:
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    with Path(sys.argv[2]).open("a", buffering=1) as journal:
        _serve(plan, journal)


def _serve(plan: dict[str, Any], journal: TextIO) -> None:
    guard = threading.Lock()

    def noting(server: str) -> Any:
        def note(what: str, more: str) -> None:
            with guard:
                journal.write(json.dumps([server, what, more]) + "\n")

        return note

    servers: list[socketserver.BaseServer] = []
    for address in plan["resolvers"]:
        servers.append(dns.udp_server(address, plan["names"], noting(f"dns {address}")))
        servers.append(dns.tcp_server(address, plan["names"], noting(f"dns {address}")))
    certificate, files = Path(plan["certificate"]), Path(plan["files"])
    for address, port in plan["plain"]:
        servers.append(web.server(address, port, noting(f"http {address}"), files=files))
    for address, port in plan["tls"]:
        made = web.server(address, port, noting(f"tls {address}"), certificate=certificate, files=files)
        servers.append(made)
    servers += [_echo(address, port, noting(f"tcp {address}"), greet) for address, port, greet in plan["tcp"]]
    servers += [_source(address, port) for address, port in plan["source"]]
    servers += [_datagrams(address, port, noting(f"udp {address}")) for address, port in plan["udp"]]
    for each in servers:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    print("serving", flush=True)
    sys.stdin.read()


def _echo(address: str, port: int, note: Any, greet: str) -> socketserver.BaseServer:
    """Sends a greeting, then everything back."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            stream: socket.socket = self.request
            note("connected", self.client_address[0])
            stream.sendall(greet.encode())
            while data := stream.recv(65536):
                stream.sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    return Server((address, port), Handler)


def _source(address: str, port: int) -> socketserver.BaseServer:
    """Sends as many bytes as the first line says."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            left, piece = int(self.rfile.readline()), b"x" * (1 << 20)
            while left > 0:
                self.request.sendall(piece[:left])
                left -= len(piece)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    return Server((address, port), Handler)


def _datagrams(address: str, port: int, note: Any) -> socketserver.BaseServer:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            note(data.decode("latin-1"), self.client_address[0])
            sock.sendto(data, self.client_address)

    return socketserver.ThreadingUDPServer((address, port), Handler)


if __name__ == "__main__":
    main()
