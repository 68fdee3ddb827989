# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The whole API over a real socket, store and lifecycle service, with sandboxes that are sockets of the test.

Unlike with a daemon behind it, a test sees here every byte that the proxy sends, and sends every byte
that the proxy gets.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import uvloop

from casulo.api.serve import server_config
from casulo.control.lifecycle import Lifecycle
from casulo.model.credentials import Credentials
from casulo.model.sandbox import Exit, Handle, Isolation, Spec
from casulo.runtimes.base import Capabilities, ExitListener, Pause, Reality
from casulo.runtimes.registry import Registry
from casulo.settings import Settings
from casulo.store.store import Store

KEY = "the-key"
TOKEN = "the-token"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BODY = {"image": {"uri": "host"}, "entrypoint": ["true"], "resourceLimits": {}, "timeout": 600}


class Freeze:
    """Pausing a socket needs no work."""

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Done."""

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Done."""


class SocketRuntime:
    """Every sandbox is found at one address; `delay` makes starts slow, `failure` makes them fail."""

    name = "socket"
    pause: Pause | None = Freeze()
    egress = None
    snapshots = None

    def __init__(self, port: int) -> None:
        self.port = port
        self.features = frozenset({"pause"})
        self.delay = 0.0
        self.failure: Exception | None = None
        self.alive: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({Isolation.CONTAINER}), self.features, {"gpu": "sockets have none"})

    async def open(self, on_exit: ExitListener) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to give back."""

    def check(self, spec: Spec) -> None:
        """Everything is fine."""

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Nothing is needed."""

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        self.alive.add(sandbox_id)
        return Handle("127.0.0.1", self.port, TOKEN)

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        self.alive.discard(sandbox_id)
        return None

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        return Reality(alive=sandbox_id in self.alive)

    async def list(self) -> set[str]:
        return set(self.alive)


@dataclass
class Request:
    """What reached a sandbox: the head as raw bytes, and the socket to answer on."""

    head: bytes
    connection: socket.socket
    rest: bytes = b""

    @property
    def target(self) -> str:
        return self.head.split(b" ")[1].decode()

    @property
    def lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")[1:-2]

    def values(self, name: str) -> list[str]:
        pairs = [line.decode("latin-1").partition(": ") for line in self.lines]
        return [value for key, _, value in pairs if key.lower() == name.lower()]

    def body(self, size: int) -> bytes:
        data = self.rest
        while len(data) < size and (more := self.connection.recv(65536)):
            data += more
        self.rest = data[size:]
        return data[:size]

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)


Handler = Callable[[Request], None]


class Upstream:
    """Listens; `handler` answers each request. Connections are kept unless it closes them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.handler: Handler = lambda request: None
        self.requests: list[Request] = []
        self.open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.open.add(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rest = b""
        with suppress(OSError):
            while True:
                while b"\r\n\r\n" not in rest:
                    data = connection.recv(65536)
                    if not data:
                        raise ConnectionResetError
                    rest += data
                head, _, rest = rest.partition(b"\r\n\r\n")
                request = Request(head + b"\r\n\r\n", connection, rest)
                self.requests.append(request)
                self.handler(request)
                rest = request.rest
        self.open.discard(connection)
        connection.close()


@dataclass
class Api:
    """A running server."""

    settings: Settings
    runtime: SocketRuntime
    upstream: Upstream
    url: str = ""
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _started: threading.Event = field(default_factory=threading.Event)
    lifecycle: Lifecycle | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def start(self) -> Api:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)
        return self

    def stop(self) -> None:
        assert self._server is not None and self._thread is not None
        self._server.should_exit = True
        self._thread.join(15)
        assert not self._thread.is_alive()
        self.upstream.close()

    def client(self, **options: Any) -> httpx.Client:
        options.setdefault("headers", {"OPEN-SANDBOX-API-KEY": KEY})
        return httpx.Client(base_url=self.url, trust_env=False, timeout=10, **options)

    def sandbox(self, **more: Any) -> str:
        with self.client() as client:
            answer = client.post("/v1/sandboxes", json={**BODY, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine function on the server's own loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        store = await Store.open(f"sqlite:///{self.settings.data_dir / 'casulo.db'}")
        self.lifecycle = Lifecycle(store, Registry([self.runtime]), self.settings.control)
        config = server_config(self.settings, self.lifecycle)
        await self.lifecycle.open()
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._started.set()
        await serving
        await self.lifecycle.close()
        await store.close()


def start_api(data_dir: Path, **tables: dict[str, Any]) -> Api:
    """A server over a fresh data directory; `tables` are tables of the configuration."""
    server = {"data_dir": str(data_dir), "api_key": KEY, **tables.pop("server", {})}
    settings = Settings.parse({"server": server, **tables}, {}, source="test")
    upstream = Upstream()
    return Api(settings, SocketRuntime(upstream.port), upstream).start()


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Everything up to `mark`, or up to the end."""
    data = b""
    while mark not in data and (more := connection.recv(65536)):
        data += more
    return data


def read_all(connection: socket.socket) -> bytes:
    """Everything up to the end."""
    return read_until(connection, b"\x00never\x00")


def raw(api: Api, head: bytes, body: bytes = b"") -> bytes:
    """Send bytes, return all that comes back."""
    with api.connect() as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
        return read_all(connection)


def abort(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def seen(api: Api, answer: bytes = OK) -> list[Request]:
    """Let the sandbox answer everything with `answer`; the list fills with what reaches it."""
    api.upstream.requests.clear()
    api.upstream.handler = lambda request: request.send(answer)
    return api.upstream.requests


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
