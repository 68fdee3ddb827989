# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Heads that are large, malformed or ambiguous; nothing of them reaches a sandbox that should not."""

from __future__ import annotations

import json

import pytest

from casulo.model.errors import Code
from integration.api.harness import Api, Request, read_all, read_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def _answering(api: Api) -> None:
    api.upstream.requests.clear()
    api.upstream.handler = lambda request: request.send(OK)


def _send(api: Api, data: bytes) -> bytes:
    with api.connect() as connection:
        connection.sendall(data)
        return read_all(connection)


def _seen(api: Api) -> list[Request]:
    return api.upstream.requests


def test_b037_large_heads_pass(api: Api, box: str) -> None:
    many = b"".join(b"X-Many-%d: v\r\n" % n for n in range(200))
    head = b"GET /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % box.encode()
    answer = _send(api, head + b"Cookie: c=" + b"x" * 60_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    answer = _send(api, head + b"X-Large: " + b"x" * 60_000 + b"\r\n" + many + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert _seen(api)[1].values("x-large") == ["x" * 60_000]
    assert sum(line.startswith(b"x-many-") for line in _seen(api)[1].lines) == 200


@pytest.mark.parametrize("form", [b"X-Endless: %b\r\n", b"%b: 1\r\n"])
def test_b037_endless_heads_are_refused(api: Api, box: str, form: bytes) -> None:
    head = b"GET /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\n" % box.encode()
    with api.connect() as connection:
        try:
            connection.sendall(head + form % (b"x" * 1_000_000) + b"\r\n")
        except OSError:
            return  # refused before all of it was sent
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head",
    [
        "GET /{path} HTTP/1.1\r\nHost: x\r\nX-Value: one\nX-Secret: 1\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nX-Value: one\rX-Secret: 1\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nX-Value: one\r\n folded\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nX-Value: nul\0\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nX-Value : 1\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding:chunked\r\n\r\n0\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n1234",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\n1234",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /{path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "GET /{path} HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET /{path} HTTP/1.1\r\n\r\n",
        "GET /{path} HTTP/1.1\nHost: x\n\n",
        "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n",
        "nonsense\r\n\r\n",
    ],
)
def test_b037_malformed_heads_are_refused(api: Api, box: str, head: str) -> None:
    answer = _send(api, head.format(path=f"sandboxes/{box}/proxy/80/").encode())
    status, _, body = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 400 "), answer
    assert b"\r\nx-request-id: " in status and b"\r\ndate: " in status
    assert json.loads(body)["code"] == Code.INVALID_REQUEST and json.loads(body)["message"]
    assert _seen(api) == []


def test_b037_a_malformed_chunk_ends_the_request(api: Api, box: str) -> None:
    head = (
        b"POST /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        % box.encode()
    )
    api.upstream.handler = lambda request: None
    answer = _send(api, head + b"zz\r\nGET / HTTP/1.1\r\nX-Smuggled: 1\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert all(b"smuggled" not in request.head.lower() for request in _seen(api))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_offer_of_another_protocol_is_passed_over(api: Api, box: str, method: str) -> None:
    """Java's client offers HTTP/2 with its first request; body and connection must survive that."""
    bodies: list[bytes] = []

    def answer(request: Request) -> None:
        bodies.append(request.body(3) if request.values("content-length") else b"")
        request.send(OK)

    api.upstream.handler = answer
    length = "Content-Length: 3\r\n" if method == "POST" else ""
    plain = f"/sandboxes/{box}/proxy/80/ HTTP/1.1\r\nHost: x\r\n"
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    with api.connect() as connection:
        connection.sendall(f"{method} {plain}{offer}{length}\r\n{'abc' if length else ''}".encode())
        assert read_until(connection, b"ok").startswith(b"HTTP/1.1 200 ")
        connection.sendall(f"GET {plain}\r\n".encode())
        assert read_until(connection, b"ok").startswith(b"HTTP/1.1 200 ")
    assert bodies == [b"abc" if length else b"", b""]
    assert _seen(api)[0].values("upgrade") == [] and _seen(api)[0].values("http2-settings") == []


def test_pipelined_requests_are_answered_in_order(api: Api, box: str) -> None:
    api.upstream.handler = lambda request: request.send(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + request.target[-1:].encode()
    )
    with api.connect() as connection:
        for name in "abc":
            close = "Connection: close\r\n" if name == "c" else ""
            connection.sendall(
                f"GET /sandboxes/{box}/proxy/80/{name} HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode()
            )
        answers = read_all(connection).split(b"HTTP/1.1 200 OK")
    assert [answer[-1:] for answer in answers[1:]] == [b"a", b"b", b"c"]


def test_incomplete_websocket_handshakes(api: Api, box: str) -> None:
    for method, more in (("GET", ""), ("POST", "Sec-WebSocket-Key: x\r\n")):
        answer = _send(
            api,
            f"{method} /sandboxes/{box}/proxy/80/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\n{more}\r\n".encode(),
        )
        assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert _seen(api) == []
