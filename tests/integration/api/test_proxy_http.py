# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server proxy, byte by byte: what a sandbox gets, and what its caller gets."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from casulo.model.errors import Code
from integration.api.harness import Api, Request, read_all, read_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _raw(api: Api, head: bytes, body: bytes = b"") -> bytes:
    """Send bytes, return all that comes back."""
    with api.connect() as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
        return read_all(connection)


def _abort(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _seen(api: Api, answer: bytes = OK) -> list[Request]:
    """Let the sandbox answer everything with `answer`; the list fills with what reaches it."""
    api.upstream.requests.clear()
    api.upstream.handler = lambda request: request.send(answer)
    return api.upstream.requests


def _eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


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
    seen = _seen(api)
    key = b"OPEN-SANDBOX-API-KEY: the-key"
    for prefix in (b"", b"/v1"):
        _raw(
            api,
            b"GET %b/sandboxes/%b/proxy/8080%b HTTP/1.1\r\nHost: x\r\n%b" % (prefix, box.encode(), tail, key),
        )
        _raw(
            api,
            b"GET %b/sandboxes/%b/proxy/44772%b HTTP/1.1\r\nHost: x\r\n%b"
            % (prefix, box.encode(), tail, key),
        )
    targets = [request.head.split(b" ")[1] for request in seen]
    assert targets == [b"/proxy/8080" + expected, expected] * 2


def test_request_headers(api: Api, box: str) -> None:
    seen = _seen(api)
    _raw(
        api,
        b"GET /v1/sandboxes/%b/proxy/8080/ HTTP/1.1\r\nHost: outside.example:99\r\n"
        b"X-Twice: 1\r\nX-Twice: 2\r\nX-Latin: caf\xe9\r\nAuthorization: Bearer x\r\nCookie: a=b\r\n"
        b"OPEN-SANDBOX-API-KEY: k\r\nOpenSandbox-Secure-Access: s\r\nOpenSandbox-Access-Renew: skip\r\n"
        b"Forwarded: for=1\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Prefix: /\r\nX-Real-IP: 1.2.3.4\r\n"
        b"X-EXECD-ACCESS-TOKEN: stolen\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
        b"OPENSANDBOX-EGRESS-AUTH: e\r\nX-Request-ID: r\r\nConnection: X-Hop" % box.encode(),
    )
    lines = [line.lower() for line in seen[0].lines]
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
    seen = _seen(api)
    with api.client(headers={}) as client:
        client.get(f"/sandboxes/{box}/proxy/44772/ping")
        client.get(f"/sandboxes/{box}/proxy/44772/ping", headers={"X-EXECD-ACCESS-TOKEN": "mine"})
    assert [request.values("x-execd-access-token") for request in seen] == [[], ["mine"]]


def test_response_headers(api: Api, box: str) -> None:
    _seen(
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
    _seen(api, f"HTTP/1.1 302 F\r\nLocation: {told.format(**names)}\r\nContent-Length: 0\r\n\r\n".encode())
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
    _seen(api, b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\n%b\r\n\r\n%b" % (coding.encode(), framing, sent))
    with api.client() as client, client.stream("GET", f"/sandboxes/{box}/proxy/80/") as answer:
        assert b"".join(answer.iter_raw()) == body
    assert answer.headers["content-encoding"] == coding
    assert answer.headers.get("content-length") == (None if chunked else str(len(body)))


def test_b029_answers_without_a_body(api: Api, box: str) -> None:
    """All over one connection, so that none may leave a byte too many or too few."""
    path = f"/sandboxes/{box}/proxy/80/"
    with api.client() as client:
        _seen(api, b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")
        head = client.head(path)
        assert (head.headers["content-length"], head.content) == ("12345", b"")
        _seen(api, b"HTTP/1.1 204 No Content\r\n\r\n")
        assert client.get(path).status_code == 204
        _seen(api, b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 12345\r\n\r\n')
        unchanged = client.get(path)
        assert (unchanged.status_code, unchanged.headers["content-length"]) == (304, "12345")
        _seen(api)
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

    _seen(api)
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

    _seen(api)
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


def test_unreachable_sandbox(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    usual, api.runtime.port = api.runtime.port, closed
    try:
        box = api.sandbox()
    finally:
        api.runtime.port = usual
    with api.client() as client:
        answer = client.get(f"/v1/sandboxes/{box}/proxy/80/")
    assert (answer.status_code, answer.json()["code"]) == (502, Code.BACKEND_CONNECTION_FAILED)
    assert answer.json()["hint"]


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 O", b"not HTTP at all\r\n\r\n", b"HTTP/1.1 101 S\r\n\r\n"]
)
def test_broken_before_the_answer(api: Api, box: str, answer: bytes) -> None:
    def break_off(request: Request) -> None:
        request.send(answer)
        request.connection.shutdown(socket.SHUT_RDWR)

    api.upstream.handler = break_off
    with api.client() as client:
        told = client.post(f"/v1/sandboxes/{box}/proxy/80/", content=b"x")
    assert (told.status_code, told.json()["code"]) == (502, Code.BACKEND_RESPONSE_FAILED)


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_broken_in_the_middle_of_the_answer(api: Api, box: str, framing: bytes) -> None:
    def break_off(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n4\r\nhalf\r\n" % framing)
        time.sleep(0.1)
        _abort(request.connection)

    api.upstream.handler = break_off
    with api.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.get(f"/v1/sandboxes/{box}/proxy/80/")


def test_b033_only_the_wait_for_an_answer_is_limited(api: Api, box: str) -> None:
    """The limit of this server is 1 s."""

    def silent_later(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        time.sleep(1.5)
        request.send(b"3\r\ntwo\r\n0\r\n\r\n")

    with api.client() as client:
        api.upstream.handler = silent_later
        assert client.get(f"/sandboxes/{box}/proxy/80/").content == b"onetwo"
        api.upstream.handler = lambda request: time.sleep(2)
        begun = time.monotonic()
        late = client.get(f"/sandboxes/{box}/proxy/80/")
    assert (late.status_code, late.json()["code"]) == (504, Code.BACKEND_TIMEOUT)
    assert 0.9 < time.monotonic() - begun < 1.8


def test_b033_a_slow_upload_is_not_a_late_answer(api: Api, box: str) -> None:
    def answer(request: Request) -> None:
        request.body(4)
        request.send(OK)

    def slowly():
        for _ in range(4):
            time.sleep(0.4)
            yield b"x"

    api.upstream.handler = answer
    headers = {"Content-Length": "4"}
    with api.client() as client:
        assert client.post(f"/sandboxes/{box}/proxy/80/", content=slowly(), headers=headers).content == b"ok"


def test_a_caller_that_leaves_ends_the_request(api: Api, box: str) -> None:
    ended = threading.Event()

    def stream(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        request.connection.settimeout(5)
        try:
            gone = request.connection.recv(1) == b""
        except ConnectionResetError:
            gone = True
        if gone:
            ended.set()

    api.upstream.handler = stream
    with api.client() as client, client.stream("GET", f"/sandboxes/{box}/proxy/80/") as answer:
        assert next(answer.iter_raw()) == b"one"
    assert ended.wait(3)


def test_b031_aborted_downloads_do_not_drain_the_pool(api: Api, box: str) -> None:
    """The pool of this server has 8 places."""

    def download(request: Request) -> None:
        if "large" not in request.target:
            request.send(OK)
            return
        if "headless" in request.target:
            time.sleep(0.02)
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            request.send(b"x" * 65536)

    api.upstream.handler = download
    for number in range(200):
        kind = "large" if number % 2 else "large-headless"
        with api.connect() as connection:
            connection.sendall(f"GET /sandboxes/{box}/proxy/80/{kind} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if number % 2:
                connection.recv(1000)
            _abort(connection)
    begun = time.monotonic()
    with api.client() as client:
        assert client.get(f"/sandboxes/{box}/proxy/80/small").content == b"ok"
    assert time.monotonic() - begun < 1
    assert _eventually(lambda: len(api.upstream.open) <= 8), len(api.upstream.open)


def test_connections_are_used_again(api: Api) -> None:
    box = api.sandbox()
    seen = _seen(api)
    with api.client() as client:
        for _ in range(5):
            client.get(f"/sandboxes/{box}/proxy/80/")
    assert len({request.connection for request in seen}) == 1


def test_a_connection_that_died_idle_is_replaced(api: Api) -> None:
    box = api.sandbox()
    calls: list[str] = []

    def once(request: Request) -> None:
        calls.append(request.target)
        if len(calls) == 2:
            _abort(request.connection)
        else:
            request.send(OK)

    api.upstream.handler = once
    with api.client() as client:
        for _ in range(2):
            assert client.get(f"/sandboxes/{box}/proxy/80/").content == b"ok"
    assert len(calls) == 3


def test_a_full_proxy_says_so(api: Api, box: str) -> None:
    api.upstream.handler = lambda request: time.sleep(1.4)
    waiting = [api.connect() for _ in range(8)]
    for connection in waiting:
        connection.sendall(f"GET /sandboxes/{box}/proxy/80/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    time.sleep(0.2)
    with api.client() as client:
        answer = client.get(f"/sandboxes/{box}/proxy/80/")
    for connection in waiting:
        connection.close()
    assert answer.status_code in (503, 504) and answer.json()["code"] in (
        Code.BACKEND_BUSY,
        Code.BACKEND_TIMEOUT,
    )


@pytest.mark.parametrize("host", ["192.0.2.9:8080", "[2001:db8::1]:8080", "box.example:8080", "box.example"])
def test_b035_hosts(api: Api, box: str, host: str) -> None:
    seen = _seen(api)
    with api.client() as client:
        client.get(f"/v1/sandboxes/{box}/proxy/9222/json", headers={"Host": host})
    assert seen[0].values("host") == ["localhost:9222"]
    assert seen[0].values("x-forwarded-host") == [host] and seen[0].values("x-forwarded-proto") == ["http"]


def test_options_without_a_browsers_question_pass(api: Api, box: str) -> None:
    seen = _seen(api)
    with api.client() as client:
        assert client.options(f"/sandboxes/{box}/proxy/80/").content == b"ok"
    assert seen[0].head.startswith(b"OPTIONS ")


@pytest.mark.parametrize("port", ["0", "65536", "99999999999999"])
def test_ports_that_do_not_exist(api: Api, box: str, port: str) -> None:
    with api.client() as client:
        answer = client.get(f"/sandboxes/{box}/proxy/{port}/")
    assert (answer.status_code, answer.json()["code"]) == (400, Code.INVALID_PORT)


def test_large_bodies_pass_whole_and_in_order(api: Api, box: str) -> None:
    size = 64 * 1024 * 1024
    block = bytes(range(256)) * 4096

    def download(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(block)):
            request.send(block)

    api.upstream.handler = download
    received = 0
    with api.client() as client, client.stream("GET", f"/sandboxes/{box}/proxy/80/") as answer:
        for chunk in answer.iter_raw():
            assert chunk == (block * 2)[received % len(block) :][: len(chunk)]
            received += len(chunk)
    assert received == size
