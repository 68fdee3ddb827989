# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes of containers: the engine's named ones, and paths of the machine that engine and server share.

An engine takes a path, and looks it up itself, after it was judged here. So what it has really mounted
is compared with what was judged, before anything of the user runs in the container.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from casulo.images.rooted import open_below
from casulo.model.errors import CasuloError, Code, InvalidRequest, RuntimeFailure, Unsupported
from casulo.model.sandbox import Spec
from casulo.model.volume import Claim, HostPath, Volume
from casulo.model.volumes import HOST_FEATURE, NAMED_FEATURE
from casulo.runtimes.docker.engine import Absent, Engine, explained, to_its_end
from casulo.runtimes.docker.plan import (
    CLAIMS_LABEL,
    DOOMED_LABEL,
    RESERVED_NAMES,
    TEMPORARY_LABEL,
    Names,
)
from casulo.runtimes.hostpaths import AllowedPaths, Place, opened

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Mounts:
    """What a container is made with. `judged` are paths of this machine by their place in the container."""

    entries: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    judged: tuple[tuple[str, Place], ...] = ()
    made: tuple[str, ...] = ()


class DockerVolumes:
    """`shared` says whether the engine's file system is this machine's."""

    def __init__(self, engine: Engine, names: Names, paths: AllowedPaths, shared: bool) -> None:
        self._engine = engine
        self._names = names
        self._paths = paths
        self._shared = shared

    @property
    def features(self) -> set[str]:
        """What can be mounted."""
        return {NAMED_FEATURE, HOST_FEATURE} if self._shared else {NAMED_FEATURE}

    @property
    def missing(self) -> dict[str, str]:
        """Why the rest cannot be."""
        why = "the engine is not on this machine, or the server is not run by root"
        return {} if self._shared else {HOST_FEATURE: why}

    def check(self, spec: Spec) -> None:
        """Refuse host paths that are not allowed."""
        for volume in spec.volumes:
            if isinstance(volume.source, HostPath):
                self._paths.place(volume)
                continue
            assert isinstance(volume.source, Claim)  # it declares no other kind
            if volume.source.claim_name.startswith(RESERVED_NAMES):
                raise InvalidRequest(
                    f"volume {volume.name!r}: names that begin with {RESERVED_NAMES!r} are the server's own",
                    code=Code.VOLUME_INVALID_CLAIM_NAME,
                    hint="choose another name",
                )
            elif volume.sub_path and not self._shared:
                raise _no_sub_path(volume, "the engine's volumes are not on this machine")

    async def acquire(self, spec: Spec) -> Mounts:
        """Make what is missing. What was made is undone by `undo`."""
        entries, judged, made = [], [], []
        try:
            for volume in spec.volumes:
                if isinstance(volume.source, Claim) and await self._ensure(volume, volume.source):
                    made.append(self._names.claim(volume.source))
                place = await self._place(volume)
                if place is not None:
                    judged.append((volume.mount_path, place))
                entries.append(self._entry(volume, place))
        except BaseException:
            await to_its_end(self.undo(Mounts(made=tuple(made))))
            raise
        return Mounts(tuple(entries), self._labels(spec), tuple(judged), tuple(made))

    async def undo(self, mounts: Mounts) -> None:
        """Remove the named volumes that were made for a sandbox that then did not start."""
        for name in mounts.made:
            await self._remove(name)

    async def _ensure(self, volume: Volume, claim: Claim) -> bool:
        """Whether the named volume had to be made."""
        if await self._inspect(self._names.claim(claim)) is not None:
            return False
        if not claim.create_if_missing:
            raise InvalidRequest(
                f"volume {volume.name!r}: there is no named volume {claim.claim_name!r}",
                code=Code.VOLUME_CLAIM_NOT_FOUND,
                hint="leave createIfNotExists out to have it made",
            )
        labels = {**self._names.labels, TEMPORARY_LABEL: "yes"} if claim.delete_with_sandbox else {}
        with explained("make a named volume", Code.VOLUME_CLAIM_INSPECT_FAILED):
            await to_its_end(
                self._engine.docker.volumes.create({"Name": self._names.claim(claim), "Labels": labels})
            )
        return True

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            with explained("look at a named volume", Code.VOLUME_CLAIM_INSPECT_FAILED):
                return dict(await (await self._engine.docker.volumes.get(name)).show())
        except Absent:
            return None

    async def _place(self, volume: Volume) -> Place | None:
        """Where the volume is on this machine; None when the engine needs only its name."""
        if isinstance(volume.source, HostPath):
            place = self._paths.place(volume)
        elif not volume.sub_path:
            return None
        else:
            assert isinstance(volume.source, Claim)
            found = await self._inspect(self._names.claim(volume.source)) or {}
            if found.get("Driver") != "local" or not self._shared:
                raise _no_sub_path(volume, f"its driver is {found.get('Driver')!r}")
            place = Place(volume.name, os.path.realpath(str(found["Mountpoint"])), "", volume.sub_path)
        with opened(place):  # makes what is missing
            return place

    def _entry(self, volume: Volume, place: Place | None) -> dict[str, Any]:
        entry: dict[str, Any] = {"Target": volume.mount_path, "ReadOnly": volume.read_only}
        if place is not None:
            # An engine insists on following later mounts where the source is in its own directory.
            following = "rprivate" if isinstance(volume.source, HostPath) else "rslave"
            options = {"Propagation": following}
            return {**entry, "Type": "bind", "Source": place.path, "BindOptions": options}
        assert isinstance(volume.source, Claim)
        name = self._names.claim(volume.source)
        # As everywhere: a volume shows what is in it, and not what the image had in its place.
        return {**entry, "Type": "volume", "Source": name, "VolumeOptions": {"NoCopy": True}}

    def _labels(self, spec: Spec) -> dict[str, str]:
        claims = [v.source for v in spec.volumes if isinstance(v.source, Claim)]
        if not claims:
            return {}
        doomed = _unique([self._names.claim(claim) for claim in claims if claim.delete_with_sandbox])
        return {CLAIMS_LABEL: _unique([self._names.claim(claim) for claim in claims]), DOOMED_LABEL: doomed}

    def verify(self, mounts: Mounts, pid: int) -> None:
        """Refuse when the container shows something else than what was judged."""
        for target, place in mounts.judged:
            with opened(place) as wanted:
                if _identity(wanted) != _seen_by(pid, target):
                    raise RuntimeFailure(
                        f"volume {place.name!r}: {place.path} was replaced while it was mounted",
                        code=Code.VOLUME_HOST_PATH_NOT_ALLOWED,
                    )

    async def release(self, container: Mapping[str, Any]) -> None:
        """A container is gone: remove the volumes that were made to go with it, unless others use them."""
        doomed = (container["Config"].get("Labels") or {}).get(DOOMED_LABEL, "")
        for name in filter(None, doomed.split(",")):
            found = await self._inspect(name)
            if found and TEMPORARY_LABEL in (found.get("Labels") or {}) and not await self._users(name):
                await self._remove(name)

    async def _users(self, name: str) -> list[str]:
        """Sandboxes with this volume, also those that only show a part of it and so are no users of it to
        the engine."""
        with explained("list containers"):
            filters = f'{{"label":["{self._names.label_filter}"]}}'
            found = await self._engine.docker.containers.list(all=True, filters=filters)
        return [c["Id"] for c in found if name in str(c["Labels"].get(CLAIMS_LABEL, "")).split(",")]

    async def _remove(self, name: str) -> None:
        try:
            with explained("remove a named volume"):
                await (await self._engine.docker.volumes.get(name)).delete()
        except CasuloError as reason:
            _log.info("docker.volume_kept", volume=name, reason=reason.message)


def _unique(names: Sequence[str]) -> str:
    return ",".join(sorted(set(names)))


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _seen_by(pid: int, target: str) -> tuple[int, int]:
    """What a process sees at a path, links resolved as it would resolve them."""
    root = os.open(Path("/proc") / str(pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_below(root, os.fsencode(target), os.O_PATH)
    finally:
        os.close(root)
    try:
        return _identity(found)
    finally:
        os.close(found)


def _no_sub_path(volume: Volume, why: str) -> Unsupported:
    return Unsupported(
        f"volume {volume.name!r}: a subPath of this named volume cannot be mounted: {why}",
        code=Code.VOLUME_SUB_PATH_DRIVER,
        hint="mount the whole volume",
    )
