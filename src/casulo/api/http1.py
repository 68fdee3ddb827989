# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How requests are read from the socket: the server's HTTP/1.1 protocol with the rules that it leaves open.

- A head may be large (many and long headers pass) but not endless: 431 beyond the limit.
- A request that can be understood in two ways is refused with 400: no or several `Host` lines, a
  transfer coding besides `chunked`, and whatever the parser itself rejects (bare line feeds, both
  lengths, folded lines, ...). Nothing of it reaches a sandbox.
- An offer to switch to another protocol than WebSocket is declined by serving the request as it is,
  body included.
"""

from __future__ import annotations

import json
import uuid
from email.utils import formatdate

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from casulo.api.proxy.headers import PRIVATE, value_of
from casulo.api.proxy.route import TARGET_EXTENSION
from casulo.model.errors import Code

MAX_HEAD = 256 * 1024
_TOO_LARGE = 431
_LINE = 4  # bytes of a header line besides its name and value
_WS_MAX_HEADERS = 120
_WS_MAX_LINE = 8000


class _Refused(Exception):
    """A head that is not served; becomes the answer's status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Http1Protocol(HttpToolsProtocol):
    """One connection of a caller."""

    _head_size = 0
    _declined = False
    _refusal: _Refused | None = None

    def on_message_begin(self) -> None:
        """A new request."""
        super().on_message_begin()
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request line's target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._count(len(name) + len(value) + _LINE)
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._refuse(_TOO_LARGE, f"the request's head is larger than {MAX_HEAD} bytes")

    def on_headers_complete(self) -> None:
        """The head is complete: refuse it, or serve it, or make way for a WebSocket."""
        self._check_head()
        self.scope["extensions"] = {TARGET_EXTENSION: {"raw": self.url}}
        self._declined = self.parser.should_upgrade() and not self._should_upgrade()
        if not self._declined:
            super().on_headers_complete()

    def _check_head(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._refuse(400, "this server is not a forward proxy")
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._refuse(400, f"a request has one Host header, this one has {hosts}")
        coding = value_of(self.headers, b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            self._refuse(400, "the only transfer coding that is understood is chunked")

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = _Refused(status, message)
        raise self._refusal

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._declined:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._declined:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._get_upgrade() == b"websocket":
                self.send_400_response("this is not a complete WebSocket handshake")
            else:
                self._serve_without_switch(data[switch.args[0] :])
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))

    def _should_upgrade(self) -> bool:
        """Only complete WebSocket handshakes."""
        return (
            self._get_upgrade() == b"websocket"
            and self._should_upgrade_to_ws()
            and self.parser.get_method() == b"GET"
            and value_of(self.headers, b"sec-websocket-key") is not None
        )

    def _serve_without_switch(self, rest: bytes) -> None:
        """Read the request again without the offer, since the parser skips the body of one that has it."""
        head = [b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)]
        head += [b"%b: %b\r\n" % line for line in self.headers if line[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join([*head, b"\r\n", rest]))

    def handle_websocket_upgrade(self) -> None:
        """Hand over, without private headers, to the WebSocket protocol; its limits are narrower."""
        passed = [(name, value) for name, value in self.headers if name == b"host" or name not in PRIVATE]
        longest = max(len(self.url), *(len(name) + len(value) for name, value in passed))
        if len(passed) > _WS_MAX_HEADERS or longest > _WS_MAX_LINE:
            self._refusal = _Refused(_TOO_LARGE, "the WebSocket handshake is too large")
            self.send_400_response("")
            return
        self.scope["headers"] = passed
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what was not understood, in the same form as every other error, and hang up."""
        status, message = (self._refusal.status, self._refusal.message) if self._refusal else (400, msg)
        given = value_of(self.headers or [], b"x-request-id")
        body = json.dumps({"code": Code.INVALID_REQUEST, "message": message}).encode()
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"date: %b\r\n" % formatdate(usegmt=True).encode(),
            b"x-request-id: %b\r\n" % (given or uuid.uuid4().hex.encode()),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()
