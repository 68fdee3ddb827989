# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Web servers of the small internet: plain and TLS, telling what they were asked; mirrors below /mirror."""

from __future__ import annotations

import hashlib
import json
import socketserver
import ssl
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Note = Callable[[str, str], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def server_bind(self) -> None:
        """Without asking a resolver for the address's name, as the standard library does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class _Handler(BaseHTTPRequestHandler):
    """Echoes what it sees; `note` hears of every request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    note: Note
    files: Path | None = None

    def do_GET(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.note(f"{self.command} {self.headers.get('Host')} {self.path}", self.client_address[0])
        if self.headers.get("Upgrade") == "websocket":
            self._upgrade()
        elif path.startswith("/bytes/"):
            self._send(b"x" * int(path.removeprefix("/bytes/")))
        elif path.startswith("/mirror/") and self.files is not None:
            self._file(path.removeprefix("/mirror/"))
        elif path == "/chunks":
            self._chunks()
        else:
            body = self._body()
            told: dict[str, object] = {
                "host": self.headers.get("Host"),
                "path": self.path,
                "method": self.command,
                "size": len(body),
                "sha256": hashlib.sha256(body).hexdigest(),
            }
            if path.startswith("/headers"):
                told["headers"] = dict(self.headers)
            self._send(json.dumps(told).encode(), "application/json")

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, body: bytes, kind: str = "application/octet-stream", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, name: str) -> None:
        assert self.files is not None
        path = self.files / name
        if path.is_dir():
            path = path / "index.html"
        kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
        kind = "application/json" if path.suffix == ".json" else kind
        self._send(path.read_bytes(), kind) if path.is_file() else self._send(b"no such file", status=404)

    def _chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(5):
            self.wfile.write(b"7\r\nchunk %d\r\n" % number)
        self.wfile.write(b"0\r\n\r\n")

    def _upgrade(self) -> None:
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        )
        while data := self.connection.recv(4096):
            self.connection.sendall(data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Silent."""


def server(
    address: str, port: int, note: Note, *, certificate: Path | None = None, files: Path | None = None
) -> ThreadingHTTPServer:
    """A web server; with a certificate (and its key in one file) it speaks TLS."""
    handler = type("Handler", (_Handler,), {"note": staticmethod(note), "files": files})
    made = _Server((address, port), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        made.socket = context.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    return made
