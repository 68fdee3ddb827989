# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From a spec to a container whose daemon is ready. Blocking; what fails here, `destroy` undoes."""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from casulo import linux
from casulo.images import daemon
from casulo.model.draft import isolated_sessions
from casulo.model.errors import Code, RuntimeFailure
from casulo.model.memory import pauses_to_disk, with_memory
from casulo.model.sandbox import Handle, Resources, Spec
from casulo.runtimes import bootchannel
from casulo.runtimes.local import gvisor, seccomp, watch
from casulo.runtimes.local.bundle import DAEMON_PATH, ISOLATED_DIR, Bind, Bundle
from casulo.runtimes.local.container import Container, Folder
from casulo.runtimes.local.engines import Engine
from casulo.runtimes.local.host import Host
from casulo.runtimes.local.networks import Attachment, Network
from casulo.runtimes.local.roots import Root, Roots
from casulo.runtimes.local.settings import LocalSettings
from casulo.runtimes.local.volumes import LocalVolumes


@dataclass(frozen=True)
class Started:
    """A container whose daemon is ready: host process id, its start time, the daemon's token."""

    pid: int
    since: int
    token: str


@dataclass(frozen=True)
class Waiting:
    """A container whose daemon waits for its boot message on the other end of `channel`."""

    box: Container
    root: Root | None
    """None where the document is not made of it."""
    attachment: Attachment
    pid: int
    since: int
    channel: socket.socket


class Starter:
    """Starts containers of one server."""

    def __init__(
        self,
        host: Host,
        roots: Roots,
        network: Network,
        daemon_program: Path,
        volumes: LocalVolumes,
        settings: LocalSettings,
        start_timeout_seconds: float,
    ) -> None:
        self._host = host
        self._roots = roots
        self._network = network
        self._daemon = daemon_program
        self._volumes = volumes
        self._log_cap_bytes = settings.log_cap_bytes
        self._start_timeout = start_timeout_seconds
        self._filters = {
            nesting: seccomp.compiled(
                daemon.host_architecture(), clone3=host.closed_to_namespaces, nesting=nesting
            )
            for nesting in (False, True)
        }

    def start(self, sandbox_id: str, spec: Spec) -> Started:
        """Start what `roots` was told to provide."""
        return self.finish(self.begin(sandbox_id, spec), spec, self._start_timeout)

    def begin(self, sandbox_id: str, spec: Spec) -> Waiting:
        """As far as a start goes without knowing what shall run."""
        root = self._roots.take(sandbox_id)
        folder = Folder(self._host.sandboxes / sandbox_id)
        folder.create(self._host.id_base)
        folder.link_layers(root.layers)
        attachment = self._network.attach(folder, spec.network_policy)
        group = self._host.group(sandbox_id)
        engine = self._host.engine(spec.isolation)
        group.create(engine.on_host(spec.resources), self._host.id_base)
        self._roots.write_names(
            root, folder.upper, hostname(sandbox_id), attachment.address, attachment.resolver
        )
        if isolated_sessions(spec.extensions):
            folder.create_isolated(self._host.id_base)
        if pauses_to_disk(spec.extensions) or with_memory(spec.extensions):
            folder.limits.write_text(json.dumps(asdict(spec.resources)))
        if pauses_to_disk(spec.extensions):
            folder.goes_to_disk.touch()
        box = Container(
            host=self._host,
            engine=engine,
            bundle=self._bundle(spec, root, attachment, folder, engine),
            group=group,
            folder=folder,
            daemon=self._daemon,
            volumes=self._volumes.acquire(sandbox_id, folder.path, spec),
            memory=root.memory if engine.is_gvisor else None,
        )
        channel, pid, since = self._launch(box, spec.resources)
        return Waiting(box, root, attachment, pid, since, channel)

    def _launch(self, box: Container, resources: Resources) -> tuple[socket.socket, int, int]:
        """Start the container; our end of the boot channel, and the daemon's process."""
        ours, theirs = bootchannel.socket_pair()
        try:
            with theirs:
                pid = self._started(box, theirs, resources)
            since = linux.start_time(pid)  # now: a short entrypoint may end before `ready` is read
            if since is None:
                raise RuntimeFailure("the daemon ended at once", code=Code.SANDBOX_START_FAILED)
            if not box.engine.is_gvisor:
                box.group.settle(pid, resources)
        except BaseException:
            ours.close()
            raise
        return ours, pid, since

    def _started(self, box: Container, channel: socket.socket, resources: Resources) -> int:
        """gVisor's own programs take most of a start, and none of the sandbox's runs before it is told to:
        until then they may use every processor."""
        if not box.engine.is_gvisor:
            return box.start(channel, self._start_timeout)
        limits = box.engine.on_host(resources)
        every = max(limits.cpu_millis, 1000 * (os.cpu_count() or 1))
        box.group.create(replace(limits, cpu_millis=every), self._host.id_base)
        pid = box.start(channel, self._start_timeout)
        box.group.create(limits, self._host.id_base)
        return pid

    def can_park(self, spec: Spec) -> bool:
        """Whether `park` is possible. In gVisor a snapshot may bring memory, which knows its user already."""
        return spec.snapshot_id is None or not self._host.engine(spec.isolation).is_gvisor

    def park(self, sandbox_id: str, spec: Spec) -> Waiting:
        """`begin`, and whatever the daemon can do before it knows what it is for."""
        waiting = self.begin(sandbox_id, spec)
        try:
            with ExitStack() as stack:
                stack.enter_context(bootchannel.told_with(waiting.box.folder.daemon_log))
                descriptors = _descriptors(waiting.box, stack)
                bootchannel.park_blocking(waiting.channel, descriptors, self._start_timeout)
        except BaseException:
            waiting.channel.close()
            raise
        watch.reap_orphans()
        return waiting

    def finish(self, waiting: Waiting, spec: Spec, timeout: float) -> Started:
        """Tell the daemon what to be; it is ready when this returns. Ends the channel in any case."""
        return self._told(waiting, self.document(waiting, spec), bootchannel.start_limit(timeout, spec))

    def document(self, waiting: Waiting, spec: Spec) -> bootchannel.BootDocument:
        """What its daemon is to be told."""
        assert waiting.root is not None
        return self._document(waiting.box.folder.path.name, spec, waiting.root, waiting.attachment)

    def _told(self, waiting: Waiting, document: bootchannel.BootDocument, limit: float) -> Started:
        with ExitStack() as stack:
            channel = stack.enter_context(waiting.channel)
            stack.enter_context(bootchannel.told_with(waiting.box.folder.daemon_log))
            descriptors = _descriptors(waiting.box, stack)
            bootchannel.handshake_blocking(channel, document, descriptors, limit)
        self._volumes.keep(waiting.box.folder.path)
        watch.reap_orphans()
        return Started(waiting.pid, waiting.since, document.access_token)

    def again(self, folder: Folder, engine: Engine, handle: Handle, memory: Path) -> None:
        """Continue a sandbox from a checkpoint of its memory in the place where it was.

        Which process it is now is noted before the daemon is told to go on.
        """
        engine.clear(folder.path.name)
        attachment = self._network.again(folder)
        group = self._host.group(folder.path.name)
        group.remove()  # kernels kill what is born into a group that was killed once
        resources = Resources(**json.loads(folder.limits.read_text()))
        group.create(engine.on_host(resources), self._host.id_base)
        box = Container(
            host=self._host,
            engine=engine,
            bundle=None,
            group=group,
            folder=folder,
            daemon=self._daemon,
            memory=memory,
        )
        document = bootchannel.BootDocument(
            folder.path.name, handle.token, (), {}, listen=(attachment.listen,)
        )
        channel, pid, since = self._launch(box, resources)
        folder.note_process(pid, since)
        self._told(Waiting(box, None, attachment, pid, since, channel), document, self._start_timeout)

    def _bundle(
        self, spec: Spec, root: Root, attachment: Attachment, folder: Folder, engine: Engine
    ) -> Bundle:
        sandbox_id = folder.path.name
        group = self._host.group(sandbox_id)
        image = [Bind(Path(path), path) for path in root.binds]
        nesting = isolated_sessions(spec.extensions)
        isolated = [Bind(folder.isolated, ISOLATED_DIR, True)] if nesting else []
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
                *(self._for_gvisor(root, folder, engine) if engine.is_gvisor else ()),
                *attachment.binds,
            ),
            user_namespace=self._host.user_namespace,
            clone3=self._host.closed_to_namespaces,
            nesting=nesting,
            gvisor=engine.is_gvisor,
            own_run=root.own_run,
            id_base=self._host.id_base,
            cgroup_name=group.name,
            max_open_files=self._host.max_open_files,
            seccomp_program=self._filters[nesting] if engine.takes_filters else None,
        )

    def _for_gvisor(self, root: Root, folder: Folder, engine: Engine) -> list[Bind]:
        binds = gvisor.preloaded(self._host.run) if engine.needs_statx else []
        # An empty or missing /tmp would be kept in memory; as everywhere else it is to be on disk.
        if self._roots.own_directory(root, folder.upper, "tmp", 0o1777):
            binds.insert(0, Bind(self._host.run / "rootfs" / "tmp", "/tmp", writable=True))
        return binds

    def _document(
        self, sandbox_id: str, spec: Spec, root: Root, attachment: Attachment
    ) -> bootchannel.BootDocument:
        return bootchannel.BootDocument(
            sandbox_id=sandbox_id,
            access_token=secrets.token_urlsafe(24),
            listen=(attachment.listen,),
            entrypoint=spec.entrypoint or root.arguments,
            env=bootchannel.environment(sandbox_id, spec, image_env=root.environment, home=root.user.home),
            cwd=root.workdir,
            uid=root.user.uid,
            gid=root.user.gid,
            groups=root.user.groups,
            directories=root.directories,
            log_cap_bytes=self._log_cap_bytes,
            pre_start=spec.pre_start,
            periodic=spec.periodic,
            isolated_dir=ISOLATED_DIR if isolated_sessions(spec.extensions) else "",
            trusted_ca=spec.trusted_ca,
        )


def _descriptors(box: Container, stack: ExitStack) -> dict[str, int]:
    """What the daemon gets over the boot channel besides its document."""
    wanted: dict[str, tuple[Path | None, int]] = {
        "events": (box.folder.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        "log": (box.folder.entrypoint_log, os.O_RDWR | os.O_APPEND | os.O_CREAT),
        "cgroup": (box.group.command_directory(), os.O_RDONLY | os.O_DIRECTORY),
        "pids": (box.group.user_tasks(), os.O_WRONLY),
    }
    if box.engine.is_gvisor:  # whose processes are no processes of the host
        del wanted["cgroup"], wanted["pids"]
    opened = {}
    for name, (path, flags) in wanted.items():
        if path is not None:
            opened[name] = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, opened[name])
    return opened


def hostname(sandbox_id: str) -> str:
    """The name that a sandbox gives itself: short enough for a prompt."""
    return f"casulo-{sandbox_id[:8]}"
