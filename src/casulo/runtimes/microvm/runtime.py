# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The microVM runtime: one virtual machine for each sandbox, restored from a template.

The guest is not trusted. Its limits, its network and its end are the host's business; what it says
over its lines is only believed where it harms nobody but itself.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from casulo import linux
from casulo.images import daemon
from casulo.images.ids import PLAIN
from casulo.images.settings import ImagesSettings
from casulo.model.credentials import Credentials
from casulo.model.draft import ISOLATED_SESSIONS_FEATURE
from casulo.model.errors import Code, RuntimeFailure
from casulo.model.memory import PAUSE_TO_DISK_FEATURE, SNAPSHOT_MEMORY_FEATURE
from casulo.model.policy import EGRESS_FEATURE, VAULT_FEATURE
from casulo.model.pruning import Pruned
from casulo.model.sandbox import EXECD_PORT, Exit, Handle, Isolation, Resources, Spec
from casulo.network.egress.egress import Egress as Policing
from casulo.network.egress.settings import EgressSettings
from casulo.network.instance import instance_of
from casulo.runtimes import endings
from casulo.runtimes.base import Capabilities, ExitListener, Reality
from casulo.runtimes.local import cgroups, roots, watch
from casulo.runtimes.local.roots import Root, Roots
from casulo.runtimes.local.snapshotshelf import SnapshotShelf
from casulo.runtimes.microvm import clock, disks, ending, host, identity, inventory, monitors, sizes
from casulo.runtimes.microvm.booting import Booting, hostname
from casulo.runtimes.microvm.folder import Folder, Folders, Parts
from casulo.runtimes.microvm.machines import Machines
from casulo.runtimes.microvm.networking import Networking
from casulo.runtimes.microvm.parking import MicrovmParking
from casulo.runtimes.microvm.pauses import MicrovmPause
from casulo.runtimes.microvm.processes import is_alive
from casulo.runtimes.microvm.settings import MicrovmSettings
from casulo.runtimes.microvm.snapshots import MicrovmSnapshots
from casulo.runtimes.microvm.spares import PREFIX, Spares
from casulo.runtimes.microvm.store import Store
from casulo.runtimes.microvm.templates import BUILDING, Recipe, Templates
from casulo.runtimes.policing import HostEgress, host_egress

_MEMORY = (PAUSE_TO_DISK_FEATURE, SNAPSHOT_MEMORY_FEATURE)
_FEATURES = ("pause", "snapshot", *_MEMORY, EGRESS_FEATURE, VAULT_FEATURE)
_MIB = 1 << 20
_OVERHEAD_BYTES = 192 * _MIB
"""What a monitor may use beyond the guest's memory: its program, buffers, translated code."""

_MONITOR_PIDS = 64
_WARM = (("/bin/sh", "-c", "true"),)
log = structlog.get_logger(__name__)


class MicrovmRuntime:
    """Runs sandboxes as virtual machines on this host."""

    name = "microvm"

    def __init__(
        self,
        settings: MicrovmSettings,
        data: Path,
        start_timeout_seconds: float = 30,
        images: ImagesSettings | None = None,
        egress: Policing | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._start_timeout = start_timeout_seconds
        self._instance = instance_of(data)
        self._store = Store(settings.place(data))
        shelf = SnapshotShelf(data / "microvm-layers")  # machines keep their snapshots elsewhere
        self._roots = Roots(images or ImagesSettings(), data, PLAIN, f"{self._instance}m", shelf)
        self._watch = watch.Watch(self._ended)
        self._wanted: dict[str, tuple[Root, Recipe]] = {}
        self.pause: MicrovmPause | None = None
        self.parking: MicrovmParking | None = None
        self.snapshots: MicrovmSnapshots | None = None
        self._policing = egress or host_egress(EgressSettings(), data)
        self.egress: HostEgress | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What machines on this host can do."""
        limits = {f"limits.{name}" for name in ("cpu", "memory", "pids", "shm", "disk")}
        missing = {
            "gpu": "this runtime hands no GPU devices to sandboxes",
            ISOLATED_SESSIONS_FEATURE: "a virtual machine holds one sandbox and no sessions apart from it",
        }
        vmm = self._machines.vmm
        if vmm.accelerator == "tcg":
            missing["microvm.kvm"] = (
                f"emulated in software, which is slower and a weaker boundary: {self._why_no_kvm}"
            )
        return Capabilities(
            isolations=frozenset({Isolation.AUTO, Isolation.MICROVM}),
            features=frozenset({*_FEATURES, f"microvm.{vmm.accelerator}", f"microvm.{vmm.name}", *limits}),
            missing=missing,
        )

    def foretell(self, vaults: Mapping[str, Mapping[str, object]]) -> None:
        """What the requests of an earlier server's sandboxes are given."""
        self._policing.foretell(vaults)

    async def open(self, on_exit: ExitListener) -> None:
        """Find kernel and accelerator, load the packet filter, remove what an earlier server left over."""
        self._on_exit = on_exit
        await asyncio.to_thread(self._prepare)
        await self._roots.open(await self.list())
        for name in self._folders.names():
            if name.startswith((PREFIX, BUILDING)):
                await self._machines.remove(name)
        await self._sweep()
        self.pause = MicrovmPause(self._machines, self._watch, self._network)
        sources = (self._templates, self._spares, self._machines)
        self.parking = MicrovmParking(sources, self._booting, self._wanted.pop, self._confine, self._follow)
        self.egress = HostEgress(self._policing, self._network.police)
        self.snapshots = MicrovmSnapshots(self._data / "microvm-snapshots", self._machines, self._templates)
        self.snapshots.prepare()

    async def _sweep(self) -> None:
        await asyncio.to_thread(self._store.sweep)
        await asyncio.to_thread(
            inventory.prune,
            self._store,
            self._current(),
            unused=True,
            dry=False,
            least_age=inventory.OLD_SECONDS,
        )

    async def prune(self, *, unused: bool, dry: bool) -> Pruned:
        """Templates that were made behind the scenes, and what they are made from."""
        return await asyncio.to_thread(inventory.prune, self._store, self._current(), unused=unused, dry=dry)

    def _current(self) -> inventory.Current:
        fingerprint = self._machines.vmm.fingerprint
        return inventory.Current(self._kernel.compressed, self._initramfs, fingerprint)

    def _prepare(self) -> None:
        host.require(self._settings.monitor)
        linux.become_subreaper()
        self._store.prepare()
        self._store.register(self._data)
        self._kernel = self._store.kernel()
        run = Path("/run/casulo") / self._instance
        (run / "nowhere").mkdir(parents=True, exist_ok=True)
        execd = daemon.execd_binary(daemon.host_architecture())
        self._initramfs = self._store.initramfs(self._kernel, execd)
        self._layout = cgroups.detect()
        self._folders = Folders(self._data / "microvms", run / "vm")
        self._folders.prepare()
        self._network = Networking(self._instance, self._settings, run, self._policing)
        self._network.open(self._folders)
        vmm, self._why_no_kvm = monitors.chosen(self._settings, self._kernel, run / "nowhere")
        self._machines = Machines(self._folders, vmm, self._network.taps, self._settings.log_cap_bytes)
        self._templates = Templates(self._store, self._machines, self._settings.template_timeout_seconds)
        self._spares = Spares(self._templates, self._machines, self._settings.spare)
        self._booting = Booting(self._machines, self._network)

    async def close(self) -> None:
        """Give back spare machines; sandboxes keep running."""
        if self.pause is None:
            return
        self._watch.close()
        await self._spares.close()
        await self._machines.close()
        await self._roots.close()
        self._templates.close()
        await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        last = not self._traces()
        self._network.close(last)
        if last:
            cgroups.remove_empty(self._cgroup_parent)
            self._folders.release()

    def check(self, spec: Spec) -> None:
        """Refuse what no machine could be."""
        roots.check(spec)
        machine = sizes.hardware(spec.resources, self._settings.default_disk_bytes)
        sizes.require_room(machine, self._data)

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Fetch the image, make a disk of it and a template, unless they are here."""
        if spec.snapshot_id is not None:
            return  # a running machine has all that it needs
        await self._roots.provide(sandbox_id, spec, credentials)
        root = self._roots.take(sandbox_id)
        recipe = Recipe(await self._parts(root, spec.resources), _WARM)
        await self._templates.get(recipe)
        self._wanted[sandbox_id] = root, recipe

    async def _parts(self, root: Root, resources: Resources) -> Parts:
        image = await asyncio.to_thread(self._store.image, disks.Tree(root.layers, root.binds))
        return Parts(
            kernel=self._kernel.compressed,
            initramfs=self._initramfs,
            image_disk=image,
            hardware=sizes.hardware(resources, self._settings.default_disk_bytes),
            fingerprint=self._machines.vmm.fingerprint,
        )

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        """Restore a machine and make it this sandbox."""
        try:
            if spec.snapshot_id is not None:
                handle = await self._go_on(sandbox_id, spec, spec.snapshot_id)
            else:
                handle = await self._start(sandbox_id, spec)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise
        self._follow(sandbox_id)
        return handle

    def _follow(self, sandbox_id: str) -> None:
        """Watch it from now on; its end may have come already."""
        if not self._watch_folder(self._folders.of(sandbox_id)):
            asyncio.get_running_loop().call_soon(self._ended, sandbox_id)

    async def _start(self, sandbox_id: str, spec: Spec) -> Handle:
        """From a template, in which nothing of a sandbox is."""
        root, recipe = self._wanted.pop(sandbox_id)
        template = await self._templates.get(recipe)
        begun = time.monotonic()
        spare = await self._spares.take(template)
        try:
            folder = await self._machines.rename(spare, sandbox_id)
        except BaseException:
            await asyncio.shield(self._machines.remove(spare.name))
            raise
        restored = time.monotonic()
        await asyncio.to_thread(self._confine, sandbox_id, spec.resources)
        handle = await self._booting.boot(folder, spec, root, self._start_timeout)
        log.info(
            "microvm.started",
            sandbox=sandbox_id,
            machine_ms=round((restored - begun) * 1000, 1),
            daemon_ms=round((time.monotonic() - restored) * 1000, 1),
        )
        self._spares.refill(template)
        return handle

    async def _go_on(self, sandbox_id: str, spec: Spec, snapshot_id: str) -> Handle:
        """From a snapshot: the processes in it go on as another sandbox's."""
        assert self.snapshots is not None
        hardware = sizes.hardware(spec.resources, self._settings.default_disk_bytes)
        template = await self.snapshots.template(snapshot_id, spec, hardware)
        folder = await self._templates.restore(template, sandbox_id)
        await asyncio.to_thread(self._confine, sandbox_id, sizes.asked(spec, template.recipe.parts.hardware))
        slot, token = self._machines.slot(folder), secrets.token_urlsafe(24)
        link = (await self._machines.lines(sandbox_id)).link
        await self._booting.police(sandbox_id, spec)
        resolvers = self._network.resolvers(folder)
        who = identity.make(sandbox_id, token, hostname(sandbox_id), slot, resolvers)
        env = {**self.snapshots.environment(snapshot_id, folder), **spec.env}
        asking = asyncio.ensure_future(link.ask("renew", self._start_timeout, identity=who, env=env))
        await self._machines.vmm.go(folder.sockets)
        await asking
        self._machines.besides(clock.keep_right(link))
        return Handle(str(slot.address), EXECD_PORT, token)

    def _confine(self, name: str, resources: Resources) -> None:
        """The host's own limits on the monitor, whatever the guest makes of its memory and time."""
        process = self._folders.of(name).process()
        if process is None:
            raise RuntimeFailure("the machine has no process", code=Code.SANDBOX_START_FAILED)
        group = self._group(name)
        monitor = Resources(
            cpu_millis=resources.cpu_millis,
            memory_bytes=resources.memory_bytes + _OVERHEAD_BYTES,
            pids=_MONITOR_PIDS,
            shm_bytes=0,
        )
        group.create(monitor, 0)
        for entrance in group.entrances():
            entrance.write_text(str(process.pid))

    @property
    def _cgroup_parent(self) -> str:
        return f"casulo/{self._instance}m"

    def _group(self, name: str) -> cgroups.Group:
        return cgroups.Group(self._layout, f"{self._cgroup_parent}/{name}")

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop it and remove every trace."""
        self._watch.drop(sandbox_id)
        self._wanted.pop(sandbox_id, None)
        if self.parking:
            self.parking.forget(sandbox_id)
        folder = self._folders.of(sandbox_id)
        process = folder.process()
        if handle and process and grace_seconds > 0 and is_alive(process):
            await asyncio.to_thread(ending.ask, handle, process, grace_seconds)
        await self._machines.kill(sandbox_id)
        exit_ = _exit_of(folder)
        await asyncio.to_thread(self._network.silent, sandbox_id)
        await self._machines.remove(sandbox_id)
        await asyncio.to_thread(self._group(sandbox_id).remove)
        await asyncio.to_thread(self._roots.release, sandbox_id)
        return exit_

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        """Look at the monitor, and watch it from now on."""
        assert self.pause is not None
        folder = self._folders.of(sandbox_id)
        if self._watch_folder(folder) and await self.pause.settle(sandbox_id):
            await self._machines.lines(sandbox_id)
            return Reality(alive=True)
        if folder.frozen.exists():
            return Reality(alive=True, frozen=True)
        return Reality(alive=False, exit=_exit_of(folder))

    async def list(self) -> set[str]:
        """Ids with a folder or a control group."""
        return await asyncio.to_thread(self._traces)

    def _traces(self) -> set[str]:
        names = self._folders.names() | cgroups.siblings(self._layout, self._cgroup_parent)
        return {name for name in names if not name.startswith((PREFIX, BUILDING))}

    def _watch_folder(self, folder: Folder) -> bool:
        process = folder.process()
        return process is not None and self._watch.add(folder.name, process.pid, process.started)

    def _ended(self, sandbox_id: str) -> None:
        self._machines.besides(self._note_end(sandbox_id))

    async def _note_end(self, sandbox_id: str) -> None:
        """Keep what the machine said last, and tell how it ended."""
        folder = self._folders.of(sandbox_id)
        lines = await self._machines.lines(sandbox_id)
        await lines.drained()
        await self._machines.hang_up(sandbox_id)
        exit_ = _exit_of(folder)
        if exit_ is None:
            await asyncio.to_thread(ending.tell_last_words, folder)
        self._on_exit(sandbox_id, exit_)


def _exit_of(folder: Folder) -> Exit | None:
    """How the entrypoint ended, by the guest's word."""
    return endings.last_exit(disks.read_record(folder.disk).decode(errors="replace").splitlines())
