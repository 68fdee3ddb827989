# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The local runtime: one container per sandbox, started by crun or runc.

Everything that blocks runs in worker threads; this object only keeps what is shared between
sandboxes: the host's preparation, the slots and the watch for ended processes.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from casulo import linux
from casulo.images import daemon
from casulo.images.settings import ImagesSettings
from casulo.model.credentials import Credentials
from casulo.model.draft import ISOLATED_SESSIONS_FEATURE, isolated_sessions
from casulo.model.errors import CasuloError, Code, RuntimeFailure
from casulo.model.sandbox import Exit, Handle, Isolation, Spec
from casulo.runtimes import bootchannel
from casulo.runtimes.base import Capabilities, ExitListener, Reality
from casulo.runtimes.local import cgroups, container, host, roots, seccomp, stopping, watch
from casulo.runtimes.local.bundle import DAEMON_PATH, ISOLATED_DIR, Bind, Bundle
from casulo.runtimes.local.container import Container, Folder
from casulo.runtimes.local.networks import Attachment, Network, RoutedNetwork, SocketNetwork
from casulo.runtimes.local.roots import Root, Roots
from casulo.runtimes.local.settings import LocalSettings
from casulo.runtimes.local.snapshots import LocalSnapshots
from casulo.runtimes.local.snapshotshelf import SnapshotShelf
from casulo.runtimes.local.stirring import Stirrer
from casulo.runtimes.local.volumes import LocalVolumes

T = TypeVar("T")
WORKERS = 64
_REFILL_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Started:
    """A container whose daemon is ready: host process id, its start time, the daemon's token."""

    pid: int
    since: int
    token: str


class LocalRuntime:
    """Runs sandboxes as containers on this machine."""

    name = "local"

    def __init__(
        self,
        settings: LocalSettings,
        data: Path,
        start_timeout_seconds: float = 30,
        images: ImagesSettings | None = None,
        allowed_host_paths: tuple[Path, ...] = (),
    ) -> None:
        self._settings = settings
        self._data = data
        self._image_settings = images or ImagesSettings()
        self._start_timeout = start_timeout_seconds
        self._volumes = LocalVolumes(data, allowed_host_paths)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="local")
        self._watch = watch.Watch(self._ended)
        self._wanted = asyncio.Event()
        self._refill: asyncio.Task[None] | None = None
        self.pause: LocalPause | None = None
        self.snapshots: LocalSnapshots | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What containers on this host can do."""
        features = {"pause", "snapshot", "limits.cpu", "limits.memory", "limits.pids", "limits.shm"}
        features |= self._volumes.features
        missing = {
            "limits.disk": "this runtime has no quota on what a sandbox writes to its disk",
            "gpu": "this runtime hands no GPU devices to sandboxes",
            **self._volumes.missing,
        }
        if self._host.user_namespace:
            features.add(ISOLATED_SESSIONS_FEATURE)
        else:
            missing[ISOLATED_SESSIONS_FEATURE] = "a server run by root, crun, and user namespaces are needed"
        return Capabilities(
            isolations=frozenset({Isolation.AUTO, Isolation.CONTAINER}),
            features=frozenset(features),
            missing=missing,
        )

    async def open(self, on_exit: ExitListener) -> None:
        """Prepare host, packet filter, image and the first slots."""
        self._on_exit = on_exit
        await self._run(self._prepare)
        shelf = SnapshotShelf(self._host.data / "snapshots")
        self._roots = Roots(self._image_settings, self._host, shelf)
        await self._roots.open(await self.list())
        self.snapshots = kept = LocalSnapshots(self._host, self._roots, shelf)
        await self._run(kept.thaw_forgotten)
        self.pause = LocalPause(self._host)
        self._refill = asyncio.create_task(self._keep_spares())

    def _prepare(self) -> None:
        self._host = prepared = host.prepare(self._settings, self._data)
        self._volumes.open(prepared.user_namespace)
        linux.become_subreaper()
        self._network: Network = (
            SocketNetwork() if prepared.rootless else RoutedNetwork(self._settings, prepared)
        )
        self._stirrer = Stirrer(prepared.layout, prepared.cgroup_parent)
        self._stirrer.open()
        self._network.open([Folder(path) for path in prepared.sandboxes.iterdir()])
        self._filters = {
            nesting: seccomp.compiled(
                daemon.host_architecture(), clone3=prepared.closed_to_namespaces, nesting=nesting
            )
            for nesting in (False, True)
        }
        self._daemon = daemon.install(prepared.programs / "daemon", daemon.host_architecture())

    async def _keep_spares(self) -> None:
        """Supervisor: refill after every take, one at a time, since creates need the CPU more."""
        while True:
            self._wanted.clear()
            try:
                while self._network.spare < self._network.spare_wanted:
                    await self._run(self._network.prepare)
            except (CasuloError, OSError) as error:
                log.warning("network.prepare_failed", error=str(error))
                await asyncio.sleep(_REFILL_RETRY_SECONDS)
                continue
            await self._wanted.wait()

    async def close(self) -> None:
        """Give back unused slots, and everything else when no sandbox is left."""
        if self._refill is None:
            return
        self._refill.cancel()
        await asyncio.wait([self._refill])
        self._watch.close()
        await self._roots.close()
        await self._run(self._give_back)
        self._pool.shutdown()

    def _give_back(self) -> None:
        self._stirrer.close()
        last = not self._traces()
        self._network.close(last)
        if last:
            host.release(self._host)

    def check(self, spec: Spec) -> None:
        """Refuse names that are none, and platforms that are not this machine's."""
        roots.check(spec)
        self._volumes.check(spec)

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Fetch the image if it is not here, and hold it."""
        await self._roots.provide(sandbox_id, spec, credentials)

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        """Start one container; undone completely on any error, cancellation included."""
        self._stirrer.stir()
        try:
            started = await self._finish(functools.partial(self._create, sandbox_id, spec))
            host_name, port = await self._network.publish(self._folder(sandbox_id), None)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise
        finally:
            self._wanted.set()
        handle = Handle(host_name, port, started.token, {"pid": started.pid, "started": started.since})
        if not self._watch_handle(sandbox_id, handle):
            asyncio.get_running_loop().call_soon(self._ended, sandbox_id)
        return handle

    async def _finish(self, work: Callable[[], T]) -> T:
        """`_run`, but a cancelled caller waits too: a thread cannot be stopped half-way."""
        running = asyncio.ensure_future(self._run(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def _create(self, sandbox_id: str, spec: Spec) -> _Started:
        root = self._roots.take(sandbox_id)
        folder = self._folder(sandbox_id)
        folder.create(self._host.id_base)
        folder.link_layers(root.layers)
        attachment = self._network.attach(folder)
        group = self._host.group(sandbox_id)
        group.create(spec.resources, self._host.id_base)
        self._roots.write_names(root, folder.upper, hostname(sandbox_id), attachment.address)
        if isolated_sessions(spec.extensions):
            folder.create_isolated(self._host.id_base)
        box = Container(
            host=self._host,
            bundle=self._bundle(sandbox_id, spec, root, attachment, group),
            group=group,
            folder=folder,
            daemon=self._daemon,
            volumes=self._volumes.acquire(sandbox_id, folder.path, spec),
        )
        document = self._document(sandbox_id, spec, root, attachment)
        return self._boot(box, document, spec)

    def _bundle(
        self, sandbox_id: str, spec: Spec, root: Root, attachment: Attachment, group: cgroups.Group
    ) -> Bundle:
        image = [Bind(Path(path), path) for path in root.binds]
        nesting = isolated_sessions(spec.extensions)
        isolated = [Bind(self._folder(sandbox_id).isolated, ISOLATED_DIR, True)] if nesting else []
        limits = [Bind(path, target) for target, path in group.visible().items()]
        cpus = Path("/sys/devices/system/cpu")  # read by math libraries and language runtimes
        return Bundle(
            sandbox_id=sandbox_id,
            hostname=hostname(sandbox_id),
            rootfs=self._host.run / "rootfs",
            network_namespace=attachment.namespace,
            resources=spec.resources,
            architecture=daemon.host_architecture(),
            binds=(
                *image,
                *limits,
                Bind(cpus, str(cpus)),
                Bind(self._host.run / "execd", DAEMON_PATH),
                *isolated,
                *attachment.binds,
            ),
            user_namespace=self._host.user_namespace,
            clone3=self._host.closed_to_namespaces,
            nesting=nesting,
            own_run=root.own_run,
            id_base=self._host.id_base,
            cgroup_name=group.name,
            max_open_files=self._host.max_open_files,
            seccomp_program=self._filters[nesting],
        )

    def _document(
        self, sandbox_id: str, spec: Spec, root: Root, attachment: Attachment
    ) -> bootchannel.BootDocument:
        return bootchannel.BootDocument(
            sandbox_id=sandbox_id,
            access_token=secrets.token_urlsafe(24),
            listen=(attachment.listen,),
            entrypoint=root.arguments,
            env=bootchannel.environment(sandbox_id, spec, image_env=root.environment, home=root.user.home),
            cwd=root.workdir,
            uid=root.user.uid,
            gid=root.user.gid,
            groups=root.user.groups,
            directories=root.directories,
            log_cap_bytes=self._settings.log_cap_bytes,
            pre_start=spec.pre_start,
            periodic=spec.periodic,
            isolated_dir=ISOLATED_DIR if isolated_sessions(spec.extensions) else "",
        )

    def _boot(self, box: Container, document: bootchannel.BootDocument, spec: Spec) -> _Started:
        """Start the container and talk its daemon into being."""
        ours, theirs = bootchannel.socket_pair()
        with ExitStack() as stack:
            stack.enter_context(ours)
            with theirs:
                pid = box.start(theirs, self._start_timeout)
            since = linux.start_time(pid)  # now: a short entrypoint may end before `ready` is read
            if since is None:
                raise RuntimeFailure("the daemon ended at once", code=Code.SANDBOX_START_FAILED)
            box.group.settle(pid, spec.resources)
            limit = bootchannel.start_limit(self._start_timeout, spec)
            bootchannel.handshake_blocking(ours, document, _descriptors(box, stack), limit)
        self._volumes.keep(box.folder.path)
        watch.reap_orphans()
        return _Started(pid, since, document.access_token)

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop it and remove every trace."""
        self._watch.drop(sandbox_id)
        try:
            return await self._run(functools.partial(self._destroy, sandbox_id, handle, grace_seconds))
        finally:
            await self._network.unpublish(self._folder(sandbox_id))
            await self._roots.release(sandbox_id)

    def _destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        folder = self._folder(sandbox_id)
        group = self._host.group(sandbox_id)
        if handle is not None and grace_seconds > 0:
            stopping.ask(group, handle, grace_seconds)
        if group.exists():
            group.kill()
        if handle is not None:
            pid, started = process_of(handle)
            if not watch.await_end(pid, started, timeout=10):
                raise RuntimeFailure(f"process {pid} of sandbox {sandbox_id} does not end")
        container.forget(self._host, sandbox_id)
        watch.reap_orphans()
        group.remove()
        ended = stopping.read_exit(folder.events)
        self._network.detach(folder)
        self._volumes.release(sandbox_id, folder.path)
        folder.remove()
        return ended

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        """Look at the processes, and watch them from now on."""
        if self._watch_handle(sandbox_id, handle):
            await self._network.publish(self._folder(sandbox_id), handle.port)
            frozen = await self._run(self._host.group(sandbox_id).is_frozen)
            return Reality(alive=True, frozen=frozen)
        return Reality(alive=False, exit=self._exit_of(sandbox_id))

    async def list(self) -> set[str]:
        """Ids with a directory, a control group or an OCI state."""
        return await self._run(self._traces)

    def _traces(self) -> set[str]:
        folders = {
            f.name for parent in (self._host.sandboxes, self._host.run / "oci") for f in parent.iterdir()
        }
        return folders | cgroups.siblings(self._host.layout, self._host.cgroup_parent)

    def _watch_handle(self, sandbox_id: str, handle: Handle) -> bool:
        return self._watch.add(sandbox_id, *process_of(handle))

    def _ended(self, sandbox_id: str) -> None:
        self._on_exit(sandbox_id, self._exit_of(sandbox_id))

    def _exit_of(self, sandbox_id: str) -> Exit | None:
        recorded = stopping.read_exit(self._folder(sandbox_id).events)
        if recorded is None and self._host.group(sandbox_id).was_out_of_memory():
            # The daemon itself was the last thing left to end, and so could not write it down.
            return Exit(None, "SIGKILL", oom=True)
        return recorded

    def _folder(self, sandbox_id: str) -> Folder:
        return Folder(self._host.sandboxes / sandbox_id)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class LocalPause:
    """Freezing with the cgroup freezer: processes stay in memory and get no CPU time."""

    def __init__(self, prepared: host.Host) -> None:
        self._host = prepared

    async def pause(self, sandbox_id: str, handle: Handle) -> None:
        """Freeze every process of the sandbox."""
        await self._freeze(sandbox_id, True)

    async def resume(self, sandbox_id: str, handle: Handle) -> None:
        """Thaw every process of the sandbox."""
        await self._freeze(sandbox_id, False)

    async def _freeze(self, sandbox_id: str, frozen: bool) -> None:
        await asyncio.to_thread(self._host.group(sandbox_id).freeze, frozen)


def hostname(sandbox_id: str) -> str:
    """The name that a sandbox gives itself: short enough for a prompt."""
    return f"casulo-{sandbox_id[:8]}"


def process_of(handle: Handle) -> tuple[int, int]:
    """(process id on the host, its start time) of a sandbox's daemon."""
    return int(handle.data["pid"]), int(handle.data["started"])


def _descriptors(box: Container, stack: ExitStack) -> dict[str, int]:
    """What the daemon gets over the boot channel besides its document."""
    wanted: dict[str, tuple[Path | None, int]] = {
        "events": (box.folder.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        "log": (box.folder.entrypoint_log, os.O_RDWR | os.O_APPEND | os.O_CREAT),
        "cgroup": (box.group.command_directory(), os.O_RDONLY | os.O_DIRECTORY),
        "pids": (box.group.user_tasks(), os.O_WRONLY),
    }
    opened = {}
    for name, (path, flags) in wanted.items():
        if path is not None:
            opened[name] = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, opened[name])
    return opened
