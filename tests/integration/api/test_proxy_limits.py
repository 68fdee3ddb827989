# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server proxy when a side fails, leaves, hesitates, or asks for much."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from casulo.model.errors import Code
from integration.api.harness import OK, Api, Request, abort, eventually, seen


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
        abort(request.connection)

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
    assert time.monotonic() - begun > 0.9


def test_b033_a_slow_upload_is_not_a_late_answer(api: Api, box: str) -> None:
    def answer(request: Request) -> None:
        request.body(4)
        request.send(OK)

    def slowly() -> Iterator[bytes]:
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
            abort(connection)
    with api.client() as client:
        assert client.get(f"/sandboxes/{box}/proxy/80/small").content == b"ok"
    assert eventually(lambda: len(api.upstream.open) <= 8), len(api.upstream.open)


def test_connections_are_used_again(api: Api) -> None:
    box = api.sandbox()
    requests = seen(api)
    with api.client() as client:
        for _ in range(5):
            client.get(f"/sandboxes/{box}/proxy/80/")
    assert len({request.connection for request in requests}) == 1


def test_a_connection_that_died_idle_is_replaced(api: Api) -> None:
    box = api.sandbox()
    calls: list[str] = []

    def once(request: Request) -> None:
        calls.append(request.target)
        if len(calls) == 2:
            abort(request.connection)
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
