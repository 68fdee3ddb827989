# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The sync API, derived line by line from the async one; a test holds the two surfaces equal."""

from __future__ import annotations

from casulo.client.blocking import Twin, blocking, finishing, iterating, making, wrapping
from casulo.client.code import AsyncCode
from casulo.client.commands import AsyncCommands
from casulo.client.connection import Connection
from casulo.client.egress import AsyncEgress
from casulo.client.files import AsyncFiles
from casulo.client.isolated import AsyncIsolated, AsyncIsolatedSession
from casulo.client.lifecycle import AsyncClient
from casulo.client.pools import AsyncPools
from casulo.client.records import SandboxInfo
from casulo.client.sandbox import AsyncSandbox
from casulo.client.sessions import AsyncSession, AsyncSessions
from casulo.client.snapshots import AsyncSnapshots
from casulo.client.templates import AsyncTemplates
from casulo.client.terminals import AsyncTerminal, AsyncTerminals
from casulo.client.vault import AsyncVault


class Pools(Twin[AsyncPools]):
    """See AsyncPools."""

    create = blocking(AsyncPools.create)
    list = blocking(AsyncPools.list)
    get = blocking(AsyncPools.get)
    resize = blocking(AsyncPools.resize)
    delete = blocking(AsyncPools.delete)


class Snapshots(Twin[AsyncSnapshots]):
    """See AsyncSnapshots."""

    create = blocking(AsyncSnapshots.create)
    list = blocking(AsyncSnapshots.list)
    get = blocking(AsyncSnapshots.get)
    delete = blocking(AsyncSnapshots.delete)
    diff = blocking(AsyncSnapshots.diff)


class Templates(Twin[AsyncTemplates]):
    """See AsyncTemplates."""

    build = blocking(AsyncTemplates.build)
    list = blocking(AsyncTemplates.list)
    get = blocking(AsyncTemplates.get)
    delete = blocking(AsyncTemplates.delete)
    prune = blocking(AsyncTemplates.prune)


class Client(Twin[AsyncClient]):
    """See AsyncClient."""

    def __init__(self, connection: Connection | None = None) -> None:
        super().__init__(AsyncClient(connection))
        self.snapshots = Snapshots(self._source.snapshots)
        self.templates = Templates(self._source.templates)
        self.pools = Pools(self._source.pools)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        """The resolved connection."""
        return self._source.connection

    def async_client(self) -> AsyncClient:
        """The client that does the work."""
        return self._source

    close = blocking(AsyncClient.close)
    health = blocking(AsyncClient.health)
    version = blocking(AsyncClient.version)
    create = blocking(AsyncClient.create)
    fork = blocking(AsyncClient.fork)
    list = blocking(AsyncClient.list)
    get = blocking(AsyncClient.get)
    kill = blocking(AsyncClient.kill)
    pause = blocking(AsyncClient.pause)
    resume = blocking(AsyncClient.resume)
    renew = blocking(AsyncClient.renew)
    patch_metadata = blocking(AsyncClient.patch_metadata)
    endpoint = blocking(AsyncClient.endpoint)
    create_key = blocking(AsyncClient.create_key)
    list_keys = blocking(AsyncClient.list_keys)
    rotate_key = blocking(AsyncClient.rotate_key)
    remove_key = blocking(AsyncClient.remove_key)


class Commands(Twin[AsyncCommands]):
    """See AsyncCommands."""

    run = blocking(AsyncCommands.run)
    stream = iterating(AsyncCommands.stream)
    start = blocking(AsyncCommands.start)
    write_stdin = blocking(AsyncCommands.write_stdin)
    close_stdin = blocking(AsyncCommands.close_stdin)
    status = blocking(AsyncCommands.status)
    logs = blocking(AsyncCommands.logs)
    wait = blocking(AsyncCommands.wait)
    interrupt = blocking(AsyncCommands.interrupt)


class Code(Twin[AsyncCode]):
    """See AsyncCode."""

    run = blocking(AsyncCode.run)
    stream = iterating(AsyncCode.stream)
    interrupt = blocking(AsyncCode.interrupt)
    create_context = blocking(AsyncCode.create_context)
    contexts = blocking(AsyncCode.contexts)
    context = blocking(AsyncCode.context)
    delete_context = blocking(AsyncCode.delete_context)
    delete_contexts = blocking(AsyncCode.delete_contexts)


class Files(Twin[AsyncFiles]):
    """See AsyncFiles."""

    def as_user(self, uid: int, gid: int) -> Files:
        """The same files, reached with the rights of another user."""
        return Files(self._source.as_user(uid, gid))

    read = blocking(AsyncFiles.read)
    read_bytes = blocking(AsyncFiles.read_bytes)
    read_lines = blocking(AsyncFiles.read_lines)
    stream = iterating(AsyncFiles.stream)
    write = blocking(AsyncFiles.write)
    write_many = blocking(AsyncFiles.write_many)
    info = blocking(AsyncFiles.info)
    info_many = blocking(AsyncFiles.info_many)
    exists = blocking(AsyncFiles.exists)
    list = blocking(AsyncFiles.list)
    search = blocking(AsyncFiles.search)
    replace = blocking(AsyncFiles.replace)
    move = blocking(AsyncFiles.move)
    delete = blocking(AsyncFiles.delete)
    chmod = blocking(AsyncFiles.chmod)
    mkdir = blocking(AsyncFiles.mkdir)
    rmdir = blocking(AsyncFiles.rmdir)
    watch = iterating(AsyncFiles.watch)
    pack = iterating(AsyncFiles.pack)
    unpack = blocking(AsyncFiles.unpack)
    upload = blocking(AsyncFiles.upload)
    download = blocking(AsyncFiles.download)


class Session(Twin[AsyncSession]):
    """See AsyncSession."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    @property
    def id(self) -> str:
        """Its id."""
        return self._source.id

    run = blocking(AsyncSession.run)
    interrupt = blocking(AsyncSession.interrupt)
    delete = blocking(AsyncSession.delete)


class Sessions(Twin[AsyncSessions]):
    """See AsyncSessions."""

    def create(self, cwd: str | None = None) -> Session:
        """A new session that begins in `cwd`."""
        return Session(finishing(self._source.create)(cwd))

    def attach(self, session_id: str) -> Session:
        """A session that exists, by its id."""
        return Session(self._source.attach(session_id))


class IsolatedSession(Twin[AsyncIsolatedSession]):
    """See AsyncIsolatedSession."""

    def __init__(self, source: AsyncIsolatedSession) -> None:
        super().__init__(source)
        self.files = Files(source.files)

    def __enter__(self) -> IsolatedSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    @property
    def id(self) -> str:
        """Its id."""
        return self._source.id

    run = blocking(AsyncIsolatedSession.run)
    start = blocking(AsyncIsolatedSession.start)
    status = blocking(AsyncIsolatedSession.status)
    logs = blocking(AsyncIsolatedSession.logs)
    wait = blocking(AsyncIsolatedSession.wait)
    info = blocking(AsyncIsolatedSession.info)
    diff = blocking(AsyncIsolatedSession.diff)
    commit = blocking(AsyncIsolatedSession.commit)
    delete = blocking(AsyncIsolatedSession.delete)


class Isolated(Twin[AsyncIsolated]):
    """See AsyncIsolated."""

    def attach(self, session_id: str) -> IsolatedSession:
        """A session that exists, by its id."""
        return IsolatedSession(self._source.attach(session_id))

    capabilities = blocking(AsyncIsolated.capabilities)
    create = wrapping(lambda: IsolatedSession, AsyncIsolated.create)
    list = blocking(AsyncIsolated.list)


class Terminal(Twin[AsyncTerminal]):
    """See AsyncTerminal."""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    @property
    def id(self) -> str:
        """Its id."""
        return self._source.id

    @property
    def exit_code(self) -> int | None:
        """How the shell ended; None before."""
        return self._source.exit_code

    @property
    def offset(self) -> int:
        """How many bytes of output were seen."""
        return self._source.offset

    connect = blocking(AsyncTerminal.connect)
    output = iterating(AsyncTerminal.output)
    write = blocking(AsyncTerminal.write)
    resize = blocking(AsyncTerminal.resize)
    signal = blocking(AsyncTerminal.signal)
    status = blocking(AsyncTerminal.status)
    disconnect = blocking(AsyncTerminal.disconnect)
    delete = blocking(AsyncTerminal.delete)


class Terminals(Twin[AsyncTerminals]):
    """See AsyncTerminals."""

    def create(self, command: str | None = None, *, cwd: str | None = None) -> Terminal:
        """A terminal for a shell, or for `command`."""
        return Terminal(finishing(self._source.create)(command, cwd=cwd))

    def attach(self, terminal_id: str) -> Terminal:
        """A terminal that exists, by its id."""
        return Terminal(self._source.attach(terminal_id))


class Egress(Twin[AsyncEgress]):
    """See AsyncEgress."""

    get = blocking(AsyncEgress.get)
    set = blocking(AsyncEgress.set)
    allow = blocking(AsyncEgress.allow)
    deny = blocking(AsyncEgress.deny)
    remove = blocking(AsyncEgress.remove)
    test = blocking(AsyncEgress.test)
    seen = blocking(AsyncEgress.seen)
    log = iterating(AsyncEgress.log)


class Vault(Twin[AsyncVault]):
    """See AsyncVault."""

    create = blocking(AsyncVault.create)
    get = blocking(AsyncVault.get)
    patch = blocking(AsyncVault.patch)
    delete = blocking(AsyncVault.delete)
    credential = blocking(AsyncVault.credential)
    binding = blocking(AsyncVault.binding)
    set = blocking(AsyncVault.set)
    bind = blocking(AsyncVault.bind)
    remove = blocking(AsyncVault.remove)
    unbind = blocking(AsyncVault.unbind)


class Sandbox(Twin[AsyncSandbox]):
    """See AsyncSandbox."""

    def __init__(self, source: AsyncSandbox) -> None:
        super().__init__(source)
        self.egress = Egress(source.egress)
        self.vault = Vault(source.vault)
        self.commands = Commands(source.commands)
        self.code = Code(source.code)
        self.files = Files(source.files)
        self.sessions = Sessions(source.sessions)
        self.isolated = Isolated(source.isolated)
        self.terminals = Terminals(source.terminals)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self._leave(*exc)

    @property
    def id(self) -> str:
        """Its id."""
        return self._source.id

    @property
    def info(self) -> SandboxInfo:
        """What the server last said about it."""
        return self._source.info

    create = staticmethod(making(lambda: Sandbox, AsyncSandbox.create))
    connect = staticmethod(making(lambda: Sandbox, AsyncSandbox.connect))
    list = staticmethod(finishing(AsyncSandbox.list))
    get = staticmethod(finishing(AsyncSandbox.get))
    close = blocking(AsyncSandbox.close)
    refresh = blocking(AsyncSandbox.refresh)
    kill = blocking(AsyncSandbox.kill)
    renew = blocking(AsyncSandbox.renew)
    pause = blocking(AsyncSandbox.pause)
    resume = blocking(AsyncSandbox.resume)
    snapshot = blocking(AsyncSandbox.snapshot)
    fork = wrapping(lambda: _sandboxes, AsyncSandbox.fork)
    patch_metadata = blocking(AsyncSandbox.patch_metadata)
    endpoint = blocking(AsyncSandbox.endpoint)
    health = blocking(AsyncSandbox.health)
    daemon_version = blocking(AsyncSandbox.daemon_version)
    metrics = blocking(AsyncSandbox.metrics)
    watch_metrics = iterating(AsyncSandbox.watch_metrics)
    processes = blocking(AsyncSandbox.processes)
    _leave = blocking(AsyncSandbox.__aexit__)


def _sandboxes(sources: tuple[AsyncSandbox, ...]) -> tuple[Sandbox, ...]:
    return tuple(Sandbox(source) for source in sources)
