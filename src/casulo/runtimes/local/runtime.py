# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The local runtime: one container per sandbox, started by crun or runc, or by runsc (gVisor).

Everything that blocks runs in worker threads; this object only keeps what is shared between
sandboxes: the host's preparation, the slots and the watch for ended processes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog

from casulo import linux
from casulo.images import daemon
from casulo.images.ids import Ids
from casulo.images.settings import ImagesSettings
from casulo.model.credentials import Credentials
from casulo.model.errors import CasuloError, RuntimeFailure
from casulo.model.policy import NetworkPolicy
from casulo.model.sandbox import Exit, Handle, Spec
from casulo.network.egress.egress import Egress
from casulo.network.egress.settings import EgressSettings
from casulo.runtimes.base import Capabilities, ExitListener, Reality
from casulo.runtimes.local import (
    abilities,
    buckets,
    cgroups,
    checkpoints,
    container,
    engines,
    entering,
    host,
    roots,
    stopping,
    watch,
)
from casulo.runtimes.local.container import Folder
from casulo.runtimes.local.networks import Network, RoutedNetwork, SocketNetwork
from casulo.runtimes.local.parking import LocalParking
from casulo.runtimes.local.pauses import LocalPause
from casulo.runtimes.local.roots import Roots
from casulo.runtimes.local.settings import LocalSettings
from casulo.runtimes.local.snapshots import LocalSnapshots
from casulo.runtimes.local.snapshotshelf import SnapshotShelf
from casulo.runtimes.local.starting import Started, Starter
from casulo.runtimes.local.stirring import Stirrer
from casulo.runtimes.local.volumes import LocalVolumes
from casulo.runtimes.policing import HostEgress, host_egress
from casulo.workers import Workers

T = TypeVar("T")
WORKERS = 64
_REFILL_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


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
        egress: Egress | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._image_settings = images or ImagesSettings()
        self._start_timeout = start_timeout_seconds
        self._volumes = LocalVolumes(data, allowed_host_paths)
        self._pool = Workers(WORKERS, "local")
        self._watch = watch.Watch(self._ended)
        self._bucket_watch = watch.Watch(buckets.told_ended)
        self._wanted = asyncio.Event()
        self._refill: asyncio.Task[None] | None = None
        self._stirrer: Stirrer | None = None
        self.pause: LocalPause | None = None
        self.parking: LocalParking | None = None
        self.snapshots: LocalSnapshots | None = None
        self._policing = egress or host_egress(EgressSettings(), data)
        self.egress: HostEgress | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What each isolation can do on this host."""
        return abilities.of_host(
            self._host, self._settings.isolation, self._volumes.features, self._volumes.missing
        )

    def foretell(self, vaults: Mapping[str, Mapping[str, Any]]) -> None:
        """What the requests of an earlier server's sandboxes are given."""
        self._policing.foretell(vaults)

    async def open(self, on_exit: ExitListener) -> None:
        """Prepare host, packet filter, image and the first slots."""
        self._on_exit = on_exit
        await self._run(self._prepare)
        shelf = SnapshotShelf(self._host.data / "snapshots")
        ids = Ids(None) if self._host.rootless else Ids(self._host.id_base)
        self._roots = Roots(self._image_settings, self._data, ids, self._host.instance, shelf)
        await self._roots.open(await self.list())
        self._starter = Starter(
            self._host,
            self._roots,
            self._network,
            self._daemon,
            self._volumes,
            self._settings,
            self._start_timeout,
        )
        self.pause = LocalPause(self._host, self._starter, self._watch, self._finish, self._ended)
        self.snapshots = kept = LocalSnapshots(self._host, self._roots, shelf, self.pause)
        await self._run(kept.thaw_forgotten)
        if not self._host.rootless:
            self.egress = HostEgress(self._policing, self._police)
        self.parking = LocalParking(self._starter, self._undone_on_error, self._handle, self.egress)
        self._refill = asyncio.create_task(self._keep_spares())

    def _prepare(self) -> None:
        self._host = prepared = host.prepare(self._settings, self._data)
        self._volumes.buckets.open(prepared.run / "buckets", prepared.id_base, prepared.rootless)
        self._volumes.open(prepared.user_namespace)
        linux.become_subreaper()
        linux.keep_descriptors_private()
        self._network: Network = (
            SocketNetwork() if prepared.rootless else RoutedNetwork(self._settings, prepared, self._policing)
        )
        if entering.holds_up(prepared.layout):
            self._stirrer = Stirrer(prepared.layout, prepared.cgroup_parent)
            self._stirrer.open()
        self._network.open([Folder(path) for path in prepared.sandboxes.iterdir()])
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
        self._bucket_watch.close()
        await self._roots.close()
        await self._run(self._give_back)
        self._pool.close()

    def _give_back(self) -> None:
        if self._stirrer:
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
        start = functools.partial(self._starter.start, sandbox_id, spec)
        started = await self._undone_on_error(sandbox_id, start)
        try:
            return await self._handle(sandbox_id, started)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise

    async def _undone_on_error(self, sandbox_id: str, work: Callable[[], T]) -> T:
        if self._stirrer:
            self._stirrer.stir()
        try:
            return await self._finish(work)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise
        finally:
            self._wanted.set()

    async def _handle(self, sandbox_id: str, started: Started) -> Handle:
        host_name, port = await self._network.publish(self._folder(sandbox_id), None)
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

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop it and remove every trace."""
        self._watch.drop(sandbox_id)
        for key in self._volumes.buckets.processes(sandbox_id):
            self._bucket_watch.drop(key)
        if self.parking:
            self.parking.forget(sandbox_id)
        try:
            return await self._run(functools.partial(self._destroyed, sandbox_id, handle, grace_seconds))
        finally:
            await self._network.unpublish(self._folder(sandbox_id))

    def _destroyed(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        try:
            return self._destroy(sandbox_id, handle, grace_seconds)
        finally:
            self._roots.release(sandbox_id)

    def _destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        folder = self._folder(sandbox_id)
        group = self._host.group(sandbox_id)
        handle = handle and checkpoints.current(folder, handle)
        if handle is not None and grace_seconds > 0 and not folder.memory.exists():
            stopping.ask(group, handle, grace_seconds)
        if group.exists():
            group.kill()
        if handle is not None:
            pid, started = checkpoints.process_of(folder, handle)
            if not watch.await_end(pid, started, timeout=10):
                raise RuntimeFailure(f"process {pid} of sandbox {sandbox_id} does not end")
        self._sever(sandbox_id)
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
        assert self.pause is not None and self.snapshots is not None
        if await self.pause.settle(sandbox_id, handle):
            await self._network.publish(self._folder(sandbox_id), handle.port)
            if not self.snapshots.was_taking(sandbox_id):
                return Reality(alive=True, frozen=True)
            await self.pause.resume(sandbox_id, handle)
            self.snapshots.goes_on(sandbox_id)
        if self._watch_handle(sandbox_id, handle):
            await self._network.publish(self._folder(sandbox_id), handle.port)
            frozen = await self._run(self._host.group(sandbox_id).is_frozen)
            return Reality(alive=True, frozen=frozen)
        return Reality(alive=False, exit=self._exit_of(sandbox_id))

    async def list(self) -> set[str]:
        """Ids with a directory, a control group or an OCI state."""
        return await self._run(self._traces)

    def _police(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        self._network.police(self._folder(sandbox_id), policy)

    def _traces(self) -> set[str]:
        folders = {folder.name for folder in self._host.sandboxes.iterdir()}
        return (
            folders
            | engines.traces(self._host.run)
            | self._volumes.buckets.traces()
            | cgroups.siblings(self._host.layout, self._host.cgroup_parent)
        )

    def _watch_handle(self, sandbox_id: str, handle: Handle) -> bool:
        for key, (pid, since) in self._volumes.buckets.processes(sandbox_id).items():
            if not (pid and self._bucket_watch.add(key, pid, since)):
                buckets.told_ended(key)
        return self._watch.add(sandbox_id, *checkpoints.process_of(self._folder(sandbox_id), handle))

    def _sever(self, sandbox_id: str) -> None:
        """Connections to a sandbox that had a kernel of its own end now that this is gone."""
        if self._had_own_kernel(sandbox_id):
            self._network.sever(self._folder(sandbox_id))

    def _had_own_kernel(self, sandbox_id: str) -> bool:
        return self._host.gvisor is not None and self._host.gvisor.knows(sandbox_id)

    def _ended(self, sandbox_id: str) -> None:
        if self._had_own_kernel(sandbox_id):
            self._network.refuse(self._folder(sandbox_id))
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
        return await self._pool.run(work)
