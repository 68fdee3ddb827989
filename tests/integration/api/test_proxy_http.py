# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server proxy, byte by byte: what a sandbox gets, and what its caller gets."""

from __future__ import annotations

import gzip
import socket
import threading
import time

import pytest

from casulo.model.errors import Code
from integration.api.harness import OK, Api, Request, raw, read_until, seen


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b"", b"/"),
        (b"/", b"/"),
        (b"?", b"/?"),
        (b"/a%2Fb/%zz/./../c//d;p=1?x=1&x=2&y=%2520&z&+", b"/a%2Fb/%zz/./../c//d;p=1?x=1&x=2&y=%2520&z&+"),
        (b"?a=?b", b"/?a=?b"),
        (b"/x?", b"/x?"),
    ],
)
def test_path_and_query_are_untouched(api: Api, box: str, tail: bytes, expected: bytes) -> None:
    requests = seen(api)
    key = b"OPEN-SANDBOX-API-KEY: the-key"
    for prefix in (b"", b"/v1"):
        raw(
            api,
            b"GET %b/sandboxes/%b/proxy/8080%b HTTP/1.1\r\nHost: x\r\n%b" % (prefix, box.encode(), tail, key),
        )
        raw(
            api,
            b"GET %b/sandboxes/%b/proxy/44772%b HTTP/1.1\r\nHost: x\r\n%b"
            % (prefix, box.encode(), tail, key),
        )
    targets = [request.head.split(b" ")[1] for request in requests]
    assert targets == [b"/proxy/8080" + expected, expected] * 2


def test_request_headers(api: Api, box: str) -> None:
    requests = seen(api)
    raw(
        api,
        b"GET /v1/sandboxes/%b/proxy/8080/ HTTP/1.1\r\nHost: outside.example:99\r\n"
        b"X-Twice: 1\r\nX-Twice: 2\r\nX-Latin: caf\xe9\r\nAuthorization: Bearer x\r\nCookie: a=b\r\n"
        b"OPEN-SANDBOX-API-KEY: k\r\nOpenSandbox-Secure-Access: s\r\nOpenSandbox-Access-Renew: skip\r\n"
        b"Forwarded: for=1\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Prefix: /\r\nX-Real-IP: 1.2.3.4\r\n"
        b"X-EXECD-ACCESS-TOKEN: stolen\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
        b"OPENSANDBOX-EGRESS-AUTH: e\r\nX-Request-ID: r\r\nConnection: X-Hop" % box.encode(),
    )
    lines = [line.lower() for line in requests[0].lines]
    assert sorted(lines) == sorted(
        [
            b"host: localhost:8080",
            b"x-twice: 1",
            b"x-twice: 2",
            b"x-latin: caf\xe9",
            b"opensandbox-egress-auth: e",
            b"x-request-id: r",
            b"x-forwarded-proto: http",
            b"x-forwarded-host: outside.example:99",
            b"x-forwarded-for: 127.0.0.1",
            b"x-execd-access-token: the-token",
        ]
    )


def test_the_daemon_itself_gets_the_callers_token(api: Api, box: str) -> None:
    requests = seen(api)
    with api.client(headers={}) as client:
        client.get(f"/sandboxes/{box}/proxy/44772/ping")
        client.get(f"/sandboxes/{box}/proxy/44772/ping", headers={"X-EXECD-ACCESS-TOKEN": "mine"})
    assert [request.values("x-execd-access-token") for request in requests] == [[], ["mine"]]


def test_response_headers(api: Api, box: str) -> None:
    seen(
        api,
        b"HTTP/1.1 207 Whatever\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: theirs\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nConnection: x-hop\r\n"
        b"X-Empty:\r\nContent-Encoding: opaque\r\nContent-Length: 3\r\n\r\n\xff\x00\x01",
    )
    with api.client() as client:
        answer = client.get(f"/v1/sandboxes/{box}/proxy/8080/")
    assert answer.status_code == 207 and answer.content == b"\xff\x00\x01"
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert answer.headers.get_list("date") == ["Thu, 01 Jan 1970 00:00:00 GMT"]
    assert answer.headers["x-empty"] == "" and answer.headers["content-encoding"] == "opaque"
    assert not {"server", "keep-alive", "x-hop"} & set(answer.headers)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("/login?next=/", "{prefix}/login?next=/"),
        ("/", "{prefix}/"),
        ("{prefix}/there", "{prefix}/there"),
        ("/proxy/8080/login", "{prefix}/login"),
        ("http://localhost:8080/x", "{prefix}/x"),
        ("http://{host}/x", "{prefix}/x"),
        ("login", "login"),
        ("//other.example/x", "//other.example/x"),
        ("https://other.example/x", "https://other.example/x"),
    ],
)
def test_locations_stay_below_the_prefix(api: Api, box: str, told: str, wanted: str) -> None:
    names = {"prefix": f"/v1/sandboxes/{box}/proxy/8080", "host": f"127.0.0.1:{api.port}"}
    seen(api, f"HTTP/1.1 302 F\r\nLocation: {told.format(**names)}\r\nContent-Length: 0\r\n\r\n".encode())
    with api.client() as client:
        answer = client.get(f"{names['prefix']}/start")
    assert answer.headers["location"] == wanted.format(**names)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate"])
def test_b029_encoded_bodies(api: Api, box: str, coding: str, chunked: bool) -> None:
    body = gzip.compress(b"words " * 5000)
    if chunked:
        framing, sent = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        framing, sent = b"Content-Length: %d" % len(body), body
    seen(api, b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\n%b\r\n\r\n%b" % (coding.encode(), framing, sent))
    with api.client() as client, client.stream("GET", f"/sandboxes/{box}/proxy/80/") as answer:
        assert b"".join(answer.iter_raw()) == body
    assert answer.headers["content-encoding"] == coding
    assert answer.headers.get("content-length") == (None if chunked else str(len(body)))


def test_b029_answers_without_a_body(api: Api, box: str) -> None:
    """All over one connection, so that none may leave a byte too many or too few."""
    path = f"/sandboxes/{box}/proxy/80/"
    with api.client() as client:
        seen(api, b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")
        head = client.head(path)
        assert (head.headers["content-length"], head.content) == ("12345", b"")
        seen(api, b"HTTP/1.1 204 No Content\r\n\r\n")
        assert client.get(path).status_code == 204
        seen(api, b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 12345\r\n\r\n')
        unchanged = client.get(path)
        assert (unchanged.status_code, unchanged.headers["content-length"]) == (304, "12345")
        seen(api)
        assert client.get(path).content == b"ok"


def test_bodies_that_end_with_the_connection(api: Api, box: str) -> None:
    def answer(request: Request) -> None:
        request.send(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        request.connection.shutdown(socket.SHUT_RDWR)

    api.upstream.handler = answer
    with api.client() as client:
        assert client.get(f"/sandboxes/{box}/proxy/80/").content == b"all of it"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET", "OPTIONS", "PROPFIND"])
def test_request_bodies_pass_with_every_method(api: Api, box: str, method: str) -> None:
    bodies: list[bytes] = []

    def answer(request: Request) -> None:
        bodies.append(request.body(5))
        request.send(OK)

    seen(api)
    api.upstream.handler = answer
    with api.client() as client:
        assert client.request(method, f"/sandboxes/{box}/proxy/80/", content=b"12345").content == b"ok"
    assert bodies == [b"12345"] and api.upstream.requests[0].values("content-length") == ["5"]


def test_chunked_uploads_stay_chunked(api: Api, box: str) -> None:
    bodies: list[bytes] = []

    def answer(request: Request) -> None:
        bodies.append(read_until(request.connection, b"0\r\n\r\n") if not request.rest else request.rest)
        request.rest = b""
        request.send(OK)

    seen(api)
    api.upstream.handler = answer
    with api.client() as client:
        client.post(f"/sandboxes/{box}/proxy/80/", content=iter([b"hello"]))
    assert api.upstream.requests[0].values("transfer-encoding") == ["chunked"]
    assert bodies[0].endswith(b"0\r\n\r\n") and b"5\r\nhello\r\n" in bodies[0]


def test_both_directions_flow_at_once(api: Api, box: str) -> None:
    """An answer that begins before the request has ended, as with bidirectional streams."""

    def echo(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        for _ in range(3):
            request.send(request.body(2))

    api.upstream.handler = echo
    with api.connect() as connection:
        connection.sendall(
            b"POST /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n" % box.encode()
        )
        received = read_until(connection, b"\r\n\r\n")
        for piece in (b"ab", b"cd", b"ef"):
            connection.sendall(piece)
            received += read_until(connection, piece)
    assert received.endswith(b"abcdef")


def test_an_early_refusal_of_a_large_upload_arrives(api: Api, box: str) -> None:
    def refuse(request: Request) -> None:
        request.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        time.sleep(0.3)
        request.connection.shutdown(socket.SHUT_RDWR)

    api.upstream.handler = refuse
    with api.connect() as connection:
        connection.sendall(
            b"POST /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
            % box.encode()
        )
        connection.sendall(b"x" * 100_000)
        assert b" 413 " in read_until(connection, b"big")


def test_expect_continue(api: Api, box: str) -> None:
    def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body(2)
        request.send(OK)

    api.upstream.handler = answer
    with api.connect() as connection:
        connection.sendall(
            b"POST /sandboxes/%b/proxy/80/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            b"Expect: 100-continue\r\n\r\n" % box.encode()
        )
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hi")
        assert read_until(connection, b"ok").startswith(b"HTTP/1.1 200 ")


def test_events_are_not_held_back(api: Api, box: str) -> None:
    release = threading.Event()

    def stream(request: Request) -> None:
        request.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        request.send(b'd\r\n{"event": 1}\n\r\n')
        release.wait(5)
        request.send(b"0\r\n\r\n")

    api.upstream.handler = stream
    with api.client() as client, client.stream("GET", f"/sandboxes/{box}/proxy/80/") as answer:
        events = answer.iter_raw()
        assert next(events) == b'{"event": 1}\n'
        release.set()
        assert list(events) == []


@pytest.mark.parametrize("host", ["192.0.2.9:8080", "[2001:db8::1]:8080", "box.example:8080", "box.example"])
def test_b035_hosts(api: Api, box: str, host: str) -> None:
    requests = seen(api)
    with api.client() as client:
        client.get(f"/v1/sandboxes/{box}/proxy/9222/json", headers={"Host": host})
    assert requests[0].values("host") == ["localhost:9222"]
    assert requests[0].values("x-forwarded-host") == [host] and requests[0].values("x-forwarded-proto") == [
        "http"
    ]


def test_options_without_a_browsers_question_pass(api: Api, box: str) -> None:
    requests = seen(api)
    with api.client() as client:
        assert client.options(f"/sandboxes/{box}/proxy/80/").content == b"ok"
    assert requests[0].head.startswith(b"OPTIONS ")


@pytest.mark.parametrize("port", ["0", "65536", "99999999999999"])
def test_ports_that_do_not_exist(api: Api, box: str, port: str) -> None:
    with api.client() as client:
        answer = client.get(f"/sandboxes/{box}/proxy/{port}/")
    assert (answer.status_code, answer.json()["code"]) == (400, Code.INVALID_PORT)
