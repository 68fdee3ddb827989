# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server process: claim the data directory, build everything, listen, and end without a trace but
the sandboxes, which keep running."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
import uvicorn
import uvloop

from casulo import __version__
from casulo.api import instance, listen, logs
from casulo.api.app import create_app
from casulo.api.http1 import Http1Protocol
from casulo.api.instance import Home
from casulo.control.lifecycle import Lifecycle
from casulo.model.errors import Code, Conflict, InvalidRequest
from casulo.network.egress.egress import Egress
from casulo.runtimes import registry
from casulo.runtimes.base import Runtime
from casulo.settings import Settings
from casulo.store import moving
from casulo.store.store import Store

_NO_LIMIT = sys.maxsize
_KEEP_ALIVE_SECONDS = 75
_GRACE_SECONDS = 3
_PING_SECONDS = 30.0
_ALLOCATIONS = 10_000
"""Between two looks for garbage in cycles; Python's 700 would make it several for each request."""

_MIGRATE = "`osb store migrate` takes it along"
_ANEW = "name the right store; or delete `server-id` in the data directory to begin with nothing"

_log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises a typed error when the server cannot start."""
    logs.configure(settings.log)
    with instance.claimed(settings.data_dir) as home:
        settings = _with_key(_checked(settings), home)
        listener = listen.open_socket(settings.server.host, settings.server.port)
        with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(settings, home, listener))


def _checked(settings: Settings) -> Settings:
    """Servers that share a store answer for each other, so they must know the same key."""
    if settings.store.url and not settings.server.api_key and not settings.server.insecure:
        raise InvalidRequest(
            "[store] url is set and [server] api_key is not",
            code=Code.INVALID_PARAMETER,
            hint="servers that share a store need one key that is the same for all",
        )
    return settings


def _with_key(settings: Settings, home: Home) -> Settings:
    """Settings with the key that guards the server; none only where that was asked for."""
    server = settings.server
    if server.api_key:
        return settings
    if server.api_key is not None and not server.insecure:
        raise InvalidRequest(
            "[server] api_key is empty",
            code=Code.INVALID_PARAMETER,
            hint="leave it out to have a key made, or set insecure = true to serve without one",
        )
    if not server.insecure:
        return settings.model_copy(update={"server": server.model_copy(update={"api_key": home.api_key()})})
    if not listen.is_loopback(server.host):
        raise InvalidRequest(
            f"will not listen on {server.host} without an API key: everybody there could run programs here",
            code=Code.INVALID_PARAMETER,
            hint="set [server] api_key, turn insecure off, or listen on 127.0.0.1",
        )
    return settings


async def _main(settings: Settings, home: Home, listener: socket.socket) -> None:
    task = asyncio.current_task()
    assert task is not None
    with _on_signal(task.cancel):
        try:
            url = listen.url_of(settings.server.host, listener)
            async with _service(settings, home, url) as config:
                server = _Server(config, lambda: _announce(settings, home, url))
                with _on_signal(server.stop):
                    await server.serve(sockets=[listener])
        except asyncio.CancelledError:
            _log.info("server.stopped_while_starting")
        finally:
            home.retract()


@asynccontextmanager
async def _service(settings: Settings, home: Home, url: str) -> AsyncIterator[uvicorn.Config]:
    """Store, runtimes, the service over them and what is to be served; open, and closed in reverse."""
    runtimes = registry.build(settings.runtime.enabled, settings.runtime.default, _factories(settings))
    store = await _store(settings, home)
    try:
        lifecycle = Lifecycle(store, runtimes, settings.control, url=settings.store.advertise or url)
        config = server_config(settings, lifecycle)  # before: what is found at the start is told to all
        try:
            await lifecycle.open()
            yield config
        finally:
            await lifecycle.close()
    finally:
        await store.close()


async def _store(settings: Settings, home: Home) -> Store:
    """The one that has the rows of what this machine runs: what has none would be removed."""
    if settings.store.url:
        if left := moving.left_in(home.database):
            rows = ", ".join(f"{number} {name}" for name, number in left.items())
            raise _left_behind(f"{home.database} holds {rows}", f"{_MIGRATE}, or set that file aside")
        return await _shared_store(settings.store.url, home)
    if home.shared_before and not home.database.exists():
        raise _left_behind("this server's rows are in a database, and [store] url is not set", _ANEW)
    # The lock on the data directory makes this process the database's only writer.
    return await Store.open(f"sqlite:///{home.database}", exclusive=True)


async def _shared_store(url: str, home: Home) -> Store:
    known = home.shared_before
    try:
        store = await Store.open(url, here=home.identity())
    except BaseException:
        if not known:
            home.forget_identity()
        raise
    if known and home.identity() not in await store.servers.all():
        await store.close()
        raise _left_behind("the database of [store] url has never seen this server", _ANEW)
    return store


def _left_behind(why: str, hint: str) -> Conflict:
    return Conflict(
        f"this start would remove everything that runs here: {why}", code=Code.STORE_LEFT_BEHIND, hint=hint
    )


def _factories(settings: Settings) -> dict[str, registry.Factory]:
    @functools.cache
    def egress() -> Egress:
        from casulo.runtimes.policing import host_egress  # needs Linux

        return host_egress(settings.egress, settings.data_dir)

    def local() -> Runtime:
        from casulo.runtimes.local.runtime import LocalRuntime  # needs Linux; other runtimes do not

        return LocalRuntime(
            settings.local,
            settings.data_dir,
            settings.sandbox.start_timeout_seconds,
            settings.images,
            settings.storage.allowed_host_paths,
            egress(),
        )

    def docker() -> Runtime:
        from casulo.runtimes.docker.runtime import DockerRuntime  # its client takes a while to load

        return DockerRuntime(
            settings.docker,
            settings.images,
            settings.data_dir,
            settings.sandbox.start_timeout_seconds,
            settings.storage.allowed_host_paths,
            egress(),
        )

    def fake() -> Runtime:
        from casulo.runtimes.fake import FakeRuntime  # for tests; loaded when somebody asks for it

        return FakeRuntime(settings.data_dir, settings.sandbox.start_timeout_seconds)

    def microvm() -> Runtime:
        from casulo.runtimes.microvm.runtime import MicrovmRuntime  # needs Linux; other runtimes do not

        return MicrovmRuntime(
            settings.microvm,
            settings.data_dir,
            settings.sandbox.start_timeout_seconds,
            settings.images,
            egress(),
        )

    return {"local": local, "docker": docker, "microvm": microvm, "fake": fake}


def server_config(settings: Settings, lifecycle: Lifecycle) -> uvicorn.Config:
    """How uvicorn has to run the application, for the promises of the proxy to hold."""
    return uvicorn.Config(
        create_app(settings, lifecycle),
        http=Http1Protocol,
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
        # The edge adds the date where a sandbox has not; who serves is nobody's business.
        date_header=False,
        server_header=False,
        # Whether a request was relayed decides which form of endpoint its sender gets.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws_max_size=_NO_LIMIT,
        ws_per_message_deflate=False,
        # Pings keep middleboxes awake. Nobody is cut for a late answer: it may wait behind a long message.
        ws_ping_interval=_PING_SECONDS,
        ws_ping_timeout=None,
    )


class _Server(uvicorn.Server):
    """Ends by `stop` instead of by uvicorn's own signal handlers, which would kill the process after."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            _keep_modules_out_of_collections()
            self._announce()

    def stop(self) -> None:
        """Finish what is being answered; asked again, do not even wait for that."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: see the class."""
        yield


@contextmanager
def _on_signal(action: Callable[[], object]) -> Iterator[None]:
    """While inside, SIGTERM and SIGINT mean `action`."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _keep_modules_out_of_collections() -> None:
    """What was loaded until now stays; looking through all of it again would stop every answer meanwhile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *gc.get_threshold()[1:])


def _announce(settings: Settings, home: Home, url: str) -> None:
    home.announce(url)
    print(f"casulo {__version__} listening on {url}", flush=True)
    if not listen.is_loopback(settings.server.host):
        print(f"Open to the network: it listens on {settings.server.host}.", file=sys.stderr)
    if settings.server.api_key is None:
        print("No API key: every program on this machine may use it.", file=sys.stderr)
    elif home.key_file.exists():
        print(f"API key: {home.key_file} (osb on this machine finds it by itself)", file=sys.stderr)
    print("Stop with Ctrl-C; sandboxes keep running.", file=sys.stderr, flush=True)
