# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A small web application that runs inside a sandbox and behaves as tests ask it to.

Uploaded as a file and started with a port, so it uses the standard library only.
"""

import gzip
import json
import socket
import struct
import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = b"the same words again and again " * 200
BODIES = {
    "gzip": gzip.compress(TEXT, mtime=0),
    "deflate": zlib.compress(TEXT),
    "br": b"\x8b\x02\x80opaque\x03",
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name, _, rest = self.path.lstrip("/").partition("/")
        getattr(self, "serve_" + name.partition("?")[0])(rest)

    do_HEAD = do_GET

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.answer(200, self.rfile.read(length))

    def serve_echo(self, rest):
        told = {"path": self.path, "headers": self.headers.items()}
        self.answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def serve_encoded(self, rest):
        encoding, _, chunked = rest.partition("/")
        headers = {"Content-Encoding": encoding, "Set-Cookie": "a=1"}
        self.answer(200, BODIES[encoding], headers, chunked=bool(chunked))

    def serve_status(self, rest):
        self.send_response(int(rest))
        self.send_header("ETag", '"tag"')
        self.end_headers()

    def serve_range(self, rest):
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = TEXT[int(first) : int(last) + 1]
        self.answer(206, part, {"Content-Range": f"bytes {first}-{last}/{len(TEXT)}"})

    def serve_large(self, rest):
        self.send_response(200)
        self.send_header("Content-Length", str(256 << 20))
        self.end_headers()
        try:
            for _ in range(256):
                self.wfile.write(b"z" * (1 << 20))
        except OSError:
            self.close_connection = True

    def serve_never(self, rest):
        time.sleep(30)

    def serve_slow(self, rest):
        """A stream that is silent in the middle."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        time.sleep(float(rest))
        self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

    def serve_reset(self, rest):
        """Break off in the middle of the body."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half")
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def answer(self, status, body, headers=None, chunked=False):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header(
            "Transfer-Encoding" if chunked else "Content-Length", "chunked" if chunked else str(len(body))
        )
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
