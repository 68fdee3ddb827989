# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots as images of the engine: the container's changes become one more layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from casulo.model.errors import CasuloError, Code, InvalidRequest
from casulo.model.sandbox import Handle, Spec
from casulo.runtimes.docker.engine import Absent, Engine, explained, to_its_end
from casulo.runtimes.docker.plan import SANDBOX_LABEL, SNAPSHOT_LABEL, Names

_log = structlog.get_logger(__name__)


class DockerSnapshots:
    """Takes, lists and removes. A snapshot's image is tagged with the snapshot's id."""

    def __init__(self, engine: Engine, names: Names, most_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._most_bytes = most_bytes

    async def take(self, snapshot_id: str, sandbox_id: str, spec: Spec, handle: Handle) -> None:
        """Commit the container, which the engine pauses meanwhile."""
        try:
            await to_its_end(self._commit(snapshot_id, str(handle.data["container"])))
        except BaseException:
            await to_its_end(self.remove(snapshot_id))
            raise

    async def _commit(self, snapshot_id: str, name: str) -> None:
        with explained("keep the sandbox's files", Code.SNAPSHOT_CREATE_FAILED):
            container = self._engine.container(name)
            found = await container.show(size="true")
            _require_size(int(found.get("SizeRw") or 0), self._most_bytes)
            image = await self._engine.docker.images.inspect(found["Image"])
            config = self._config(snapshot_id, image.get("Config") or {})
            await container.commit(
                repository=self._names.snapshot_repository,
                tag=snapshot_id,
                config=config,
                pause=not found["State"]["Paused"],
            )

    def _config(self, snapshot_id: str, image: Mapping[str, Any]) -> dict[str, Any]:
        """The image's own words, in place of those by which the container starts its daemon."""
        labels = {**(image.get("Labels") or {}), **self._names.labels}
        return {
            **{key: value for key, value in image.items() if value is not None},
            "Entrypoint": image.get("Entrypoint") or [],
            "Cmd": image.get("Cmd") or [],
            "Labels": {**labels, SANDBOX_LABEL: "", SNAPSHOT_LABEL: snapshot_id},
        }

    async def remove(self, snapshot_id: str) -> None:
        """Untag the image; the engine keeps what containers made of it need."""
        try:
            with explained("remove the snapshot's image", Code.SNAPSHOT_DELETE_FAILED):
                await self._engine.docker.images.delete(self._names.snapshot(snapshot_id), force=True)
        except Absent:
            return

    async def list(self) -> set[str]:
        """Ids of all images in this server's repository."""
        with explained("list images"):
            found = await self._engine.docker.images.list(
                filters={"reference": [self._names.snapshot_repository]}
            )
        tags = (str(tag) for image in found for tag in image.get("RepoTags") or ())
        return {tag.rpartition(":")[2] for tag in tags}

    async def forget_image(self, container: Mapping[str, Any]) -> None:
        """A container is gone: so is the image of its snapshot, if that was removed meanwhile."""
        if SNAPSHOT_LABEL not in (container["Config"].get("Labels") or {}):
            return
        try:
            with explained("look at a snapshot's image"):
                image = await self._engine.docker.images.inspect(container["Image"])
                if not image.get("RepoTags"):
                    await self._engine.docker.images.delete(container["Image"])
        except CasuloError as reason:  # another container of it, or a snapshot of that, needs it still
            _log.info("docker.image_kept", image=container["Image"], reason=reason.message)


def _require_size(size: int, most: int) -> None:
    """A commit writes the holes of sparse files in full: a file of a terabyte with nothing in it too."""
    if size > most:
        raise InvalidRequest(
            f"the sandbox wrote {size >> 20} MiB, the holes of its files included, and at most "
            f"{most >> 20} MiB are kept",
            code=Code.SNAPSHOT_CREATE_FAILED,
            hint="remove or shorten large sparse files, or raise [docker] snapshot_max",
        )
