# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The Docker runtime: one container of the engine for each sandbox.

The engine holds everything that is known about a container, under names and labels made of the
sandbox's id, so this object keeps nothing that a restart could lose.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from aiodocker import DockerError
from aiodocker.containers import DockerContainer

from casulo.images.config import combine
from casulo.images.settings import ImagesSettings
from casulo.model.credentials import Credentials
from casulo.model.draft import HOST_IMAGE
from casulo.model.errors import CasuloError, Code, NotFound, RuntimeFailure, Unsupported
from casulo.model.sandbox import Exit, Handle, Spec
from casulo.model.snapshot import snapshot_not_found
from casulo.network.egress.egress import Egress as Policing
from casulo.network.egress.settings import EgressSettings
from casulo.runtimes import bootchannel, endings
from casulo.runtimes.base import Capabilities, ChangeListener, ExitListener, Reality
from casulo.runtimes.docker import abilities, attach, choice, ends, program
from casulo.runtimes.docker.cables import Cables
from casulo.runtimes.docker.connections import Connections
from casulo.runtimes.docker.engine import Absent, Busy, Engine, explained, to_its_end
from casulo.runtimes.docker.images import EngineImage, Images, named
from casulo.runtimes.docker.network import Network
from casulo.runtimes.docker.pauses import DockerPause
from casulo.runtimes.docker.plan import Names, Plan, instance_of
from casulo.runtimes.docker.settings import DockerSettings
from casulo.runtimes.docker.snapshots import DockerSnapshots
from casulo.runtimes.docker.volumes import DockerVolumes, Mounts
from casulo.runtimes.hostpaths import AllowedPaths
from casulo.runtimes.policing import HostEgress, host_egress

_GONE_SECONDS = 30.0
_LOOKS, _LOOK_SECONDS = 20, 0.05
_log = structlog.get_logger(__name__)


class DockerRuntime:
    """Runs sandboxes as containers of a Docker Engine."""

    name = "docker"

    def __init__(
        self,
        settings: DockerSettings,
        images: ImagesSettings,
        data: Path,
        start_timeout_seconds: float = 30,
        allowed_host_paths: tuple[Path, ...] = (),
        egress: Policing | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._start_timeout = start_timeout_seconds
        self._engine = Engine(settings)
        self._images = Images(self._engine, images)
        self._limits_disk = False
        self._trials: dict[str, str] = {}
        self.on_change: ChangeListener = lambda _: None
        self._paths = AllowedPaths(allowed_host_paths, closed=(data, Path("/run/casulo")))
        self._policing = egress or host_egress(EgressSettings(), data)
        self.egress: HostEgress | None = None
        self.pause: DockerPause | None = None
        self.snapshots: DockerSnapshots | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What containers of this engine can do."""
        return abilities.of_engine(
            self._engine.about,
            self._settings,
            self._trials,
            self._limits_disk,
            self._volumes.features,
            self._volumes.missing,
            self._connections.why_no_policy,
        )

    def foretell(self, vaults: Mapping[str, Mapping[str, Any]]) -> None:
        """What the requests of an earlier server's sandboxes are given."""
        self._policing.foretell(vaults)

    async def open(self, on_exit: ExitListener) -> None:
        """Connect to the engine, and bring daemon and network to it."""
        self._on_exit = on_exit
        await self._engine.open()
        self._names = names = Names(await asyncio.to_thread(instance_of, self._data))
        try:
            choice.check_settings(self._settings, self._engine.about)
            self._program = await program.install(self._engine, names)
            await program.remove(self._engine, names, keep=self._program)
            self._limits_disk = await program.can_limit_disk(self._engine, names)
            self._network = Network(self._engine, names, self._settings)
            await self._network.open()
            cables = Cables(self._data, self._settings, self._policing)
            self._connections = Connections(self._network, cables, self._settings, self._engine.about)
            await self._connections.open()
            self._trials = await self._try_runtimes()
            choice.check_default(self._settings, self._trials)
        except BaseException:
            await self._engine.close()
            raise
        if self._network.unfiltered:
            _log.warning("docker.network_not_filtered", reason=self._network.unfiltered)
        shared = self._network.shares_machine and os.geteuid() == 0
        self._volumes = DockerVolumes(self._engine, names, self._paths, shared)
        self._ends = ends.Ends(self._engine, names, self._ended, lambda name: self.on_change(name))
        self._ends.open()
        if not self._connections.no_cables:
            self.egress = HostEgress(self._policing, self._connections.police)
        self.pause = DockerPause(self._engine)
        self.snapshots = DockerSnapshots(self._engine, names, self._settings.snapshot_bytes)

    async def _try_runtimes(self) -> dict[str, str]:
        """For each OCI runtime that a sandbox may get by name: empty, or why it starts nothing here."""
        about, volume, network = self._engine.about, self._program, self._network.name
        named = {self._settings.docker_runtime, *self._settings.selectable_runtimes, about.gvisor} - {""}
        return {
            runtime: await program.why_not_started(self._engine, self._names, volume, network, runtime)
            for runtime in sorted(named)
        }

    async def close(self) -> None:
        """Give back what is not part of a sandbox; network and daemon too when there is none."""
        if self.pause is None:
            return
        await self._ends.close()
        await self._images.close()
        try:
            last = not await self.list()
            await self._connections.close(last)
            await self._network.close(last)
            if last:
                await program.remove(self._engine, self._names)
        except CasuloError as error:
            _log.warning("docker.not_tidied", error=error.message)
        await self._engine.close()

    def check(self, spec: Spec) -> None:
        """Refuse what the engine could not run."""
        choice.check(choice.runtime_of(spec, self._settings, self._engine.about), self._trials)
        self._volumes.check(spec)
        self._connections.check(spec)
        if spec.snapshot_id is not None:
            return
        if spec.image == HOST_IMAGE:
            raise Unsupported(
                "the Docker runtime has no image 'host': that is this machine's own file system",
                code=Code.IMAGE_UNSUPPORTED,
                hint="name an image, such as python:3.12, or choose the local runtime",
            )
        named(spec.image)
        here = self._engine.about.architecture
        if spec.platform and (spec.platform.os, spec.platform.arch) != ("linux", here):
            raise Unsupported(
                f"the Docker engine runs linux/{here}, not {spec.platform.os}/{spec.platform.arch}",
                code=Code.IMAGE_UNSUPPORTED,
                hint="leave the platform out or ask for the engine's",
            )

    async def provide(self, sandbox_id: str, spec: Spec, credentials: Credentials | None = None) -> None:
        """Have the engine fetch the image. From then on it is used by its id."""
        if spec.snapshot_id is None:
            await self._images.provide(spec.image, credentials)
        else:
            await self._image(spec)

    async def _image(self, spec: Spec) -> EngineImage:
        name = self._names.snapshot(spec.snapshot_id) if spec.snapshot_id else named(spec.image).canonical
        try:
            return await self._images.inspect(name)
        except Absent as error:
            raise _image_gone(spec) from error

    async def create(self, sandbox_id: str, spec: Spec) -> Handle:
        """Make and start one container; undone completely on any error, cancellation included."""
        try:
            return await self._create(sandbox_id, spec)
        except BaseException:
            await asyncio.shield(self.destroy(sandbox_id, None, 0))
            raise

    async def _create(self, sandbox_id: str, spec: Spec) -> Handle:
        image = await self._image(spec)
        mounts = await self._volumes.acquire(spec)
        try:
            container = await to_its_end(self._make(sandbox_id, spec, image, mounts))
            document = await self._document(sandbox_id, spec, image, container)
            await self._boot(sandbox_id, container, document, spec, mounts)
        except BaseException:
            await to_its_end(self._remove(self._names.container(sandbox_id)))
            await to_its_end(self._connections.release(sandbox_id))
            await to_its_end(self._volumes.undo(mounts))
            raise
        self._ends.watch(sandbox_id)
        found = await self._engine.show(container.id) or {}
        host, port = await self._address(sandbox_id, found)
        return Handle(host, port, document.access_token, {"container": container.id})

    async def _address(self, sandbox_id: str, container: Mapping[str, Any]) -> tuple[str, int]:
        """Where the daemon is; nowhere when a short entrypoint has ended by now, which is then told."""
        if container.get("State", {}).get("Running"):
            try:
                return await self._connections.address(sandbox_id, container)
            except RuntimeFailure:
                if await self._stays(sandbox_id):
                    raise
        self._ends.soon(sandbox_id)
        return "", 0

    async def _stays(self, sandbox_id: str) -> bool:
        """Whether it really runs: the engine notices an end a moment after its address shows it."""
        for _ in range(_LOOKS):
            if not (await ends.state_of(self._engine, self._names.container(sandbox_id))).get("Running"):
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def _boot(
        self,
        sandbox_id: str,
        container: DockerContainer,
        document: bootchannel.BootDocument,
        spec: Spec,
        mounts: Mounts,
    ) -> None:
        async def before_user_code(container_id: str) -> None:
            state = await ends.state_of(self._engine, container_id)
            pid = int(state.get("Pid", 0))
            await to_its_end(asyncio.to_thread(self._connections.finish, sandbox_id, container_id, pid))
            if mounts.judged:
                await asyncio.to_thread(self._volumes.verify, mounts, pid)

        limit = bootchannel.start_limit(self._start_timeout, spec)
        await attach.boot(self._engine, container, document, limit, before_user_code)

    async def _make(self, sandbox_id: str, spec: Spec, image: EngineImage, mounts: Mounts) -> DockerContainer:
        connection = await self._connections.make(sandbox_id, spec)
        runtime = choice.runtime_of(spec, self._settings, self._engine.about)
        plan = Plan(
            sandbox_id=sandbox_id,
            names=self._names,
            image=image.id,
            resources=spec.resources,
            program=self._program,
            network=connection.network,
            resolvers=connection.resolvers,
            address=connection.address,
            runtime=runtime,
            seccomp=choice.seccomp_of(runtime, self._engine.about),
            publish=connection.publish,
            log_bytes=self._settings.log_cap_bytes,
            mounts=mounts.entries,
            labels=mounts.labels,
        )
        with explained("make the container", Code.SANDBOX_START_FAILED):
            try:
                return await self._engine.docker.containers.create(
                    plan.config(), name=self._names.container(sandbox_id)
                )
            except DockerError as error:
                if error.status == 404 and image.id in error.message:
                    raise _image_gone(spec) from error
                raise

    async def _document(
        self, sandbox_id: str, spec: Spec, image: EngineImage, container: DockerContainer
    ) -> bootchannel.BootDocument:
        process = combine(image.config, entrypoint=spec.entrypoint)
        user = await self._images.user(image, container.id)
        return bootchannel.BootDocument(
            sandbox_id=sandbox_id,
            access_token=secrets.token_urlsafe(24),
            entrypoint=process.arguments,
            env=bootchannel.environment(sandbox_id, spec, image_env=process.env, home=user.home),
            cwd=process.cwd,
            uid=user.uid,
            gid=user.gid,
            groups=user.groups,
            log_cap_bytes=0,  # the engine keeps the log, and to its size
            pre_start=spec.pre_start,
            periodic=spec.periodic,
            trusted_ca=spec.trusted_ca,
        )

    async def destroy(self, sandbox_id: str, handle: Handle | None, grace_seconds: float) -> Exit | None:
        """Stop the container and remove every trace."""
        self._ends.drop(sandbox_id)
        name = self._names.container(sandbox_id)
        found = await self._shown(sandbox_id, handle)
        if found is None:
            await self._connections.release(sandbox_id)
            return None
        if handle is not None and grace_seconds > 0 and found["State"]["Running"]:
            await self._ask(name, found["State"], handle, grace_seconds)
        ended = await ends.exit_of(self._engine, name)
        await self._remove(name)
        await self._connections.release(sandbox_id)
        assert self.snapshots is not None
        await self._volumes.release(found)
        await self.snapshots.forget_image(found)
        return ended

    async def _ask(self, name: str, state: Mapping[str, Any], handle: Handle, grace_seconds: float) -> None:
        """Let the entrypoint end by itself. Nobody being there to ask is no error."""
        assert self.pause is not None
        try:
            if state.get("Paused"):
                await self.pause.thaw(name)
            await asyncio.to_thread(endings.ask, handle, grace_seconds)
            async with asyncio.timeout(grace_seconds + endings.ASK_TIMEOUT_SECONDS):
                with explained("wait for the container's end"):
                    await self._engine.container(name).wait()
        except (CasuloError, OSError, TimeoutError) as error:
            _log.info("stop.not_asked", host=handle.host, error=str(error))

    async def _remove(self, name: str) -> None:
        try:
            with explained("remove the container", Code.SANDBOX_DELETE_FAILED):
                await self._engine.container(name).delete(force=True, v=True)
        except Absent:
            return
        except Busy:  # somebody else is at it
            await self._await_removal(name)

    async def _await_removal(self, name: str) -> None:
        try:
            async with asyncio.timeout(_GONE_SECONDS):
                with explained("wait for the container's removal", Code.SANDBOX_DELETE_FAILED):
                    await self._engine.container(name).wait(condition="removed")
        except Absent:
            return
        except TimeoutError as error:
            raise RuntimeFailure(
                f"Docker does not finish the removal of the container {name}", code=Code.SANDBOX_DELETE_FAILED
            ) from error

    async def inspect(self, sandbox_id: str, handle: Handle) -> Reality:
        """Look at the container, and watch it from now on."""
        await self._shown(sandbox_id, handle)  # those who watch look for it by its name, so that comes first
        self._ends.watch(sandbox_id)
        name = self._names.container(sandbox_id)
        state = (await self._shown(sandbox_id, handle) or {}).get("State", {})
        if state.get("Running"):
            return Reality(alive=True, frozen=bool(state.get("Paused")))
        self._ends.drop(sandbox_id)
        return Reality(alive=False, exit=await ends.exit_of(self._engine, name))

    async def _shown(self, sandbox_id: str, handle: Handle | None) -> dict[str, Any] | None:
        """All about its container, which has its name again if somebody renamed it."""
        name = self._names.container(sandbox_id)
        found = await self._engine.show(name)
        if found is None and handle is not None and (known := str(handle.data.get("container", ""))):
            if await self._engine.show(known) is not None:
                await ends.name_again(self._engine, known, name)
            found = await self._engine.show(name)
        return found

    async def list(self) -> set[str]:
        """Ids of the containers, running or not, that bear this server's name and label."""
        filters = f'{{"label":["{self._names.label_filter}"]}}'
        with explained("list containers"):
            found = await self._engine.docker.containers.list(all=True, filters=filters)
        ids = (self._names.sandbox(container._container) for container in found)
        return {sandbox_id for sandbox_id in ids if sandbox_id} | self._connections.sandboxes()

    async def output(self, sandbox_id: str, lines: int, since: datetime | None = None) -> str:
        """What the entrypoint wrote, from the engine's log of the container."""
        return await ends.output_of(self._engine, self._names.container(sandbox_id), lines, since)

    async def _ended(self, sandbox_id: str) -> None:
        self._on_exit(sandbox_id, await ends.exit_of(self._engine, self._names.container(sandbox_id)))


def _image_gone(spec: Spec) -> NotFound:
    """Somebody removed what the sandbox was to be made of."""
    if spec.snapshot_id is not None:
        return snapshot_not_found(spec.snapshot_id)
    return NotFound(
        f"the Docker engine has the image {spec.image} no more",
        code=Code.IMAGE_NOT_FOUND,
        hint="somebody removed it meanwhile; try again",
    )
