# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The daemon's program where containers find it: a volume of the engine, filled once for each version.

A volume works with engines on other machines too, and with images that hold no program at all. It is
filled through a container that is never started, made from an image of nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiodocker.containers import DockerContainer

from casulo.images import daemon
from casulo.model.errors import Code, RuntimeFailure
from casulo.runtimes.docker import leftovers
from casulo.runtimes.docker.engine import Absent, Busy, Engine, explained, to_its_end
from casulo.runtimes.docker.plan import Names

EMPTY_IMAGE = "casulo/empty:1"
TRIAL_SECONDS = 15.0
_PLACE = "/volume"
_log = structlog.get_logger(__name__)


async def install(engine: Engine, names: Names) -> str:
    """The name of a volume that holds the daemon for the engine's architecture."""
    architecture = engine.about.architecture
    content = daemon.execd_binary(architecture).read_bytes()
    volume = names.program(hashlib.sha256(content).hexdigest()[:16])
    await _load_empty_image(engine, architecture)
    with explained("make a volume for the daemon", Code.HOST_UNSUPPORTED):
        await engine.docker.volumes.create({"Name": volume, "Labels": names.labels})
    async with _helper(engine, names, {"Binds": [f"{volume}:{_PLACE}"]}) as helper:
        # Nobody else writes to a volume of this name, so all that can be wrong is that it was cut short.
        if await _size(engine, helper) != len(content):
            with explained("store the daemon", Code.HOST_UNSUPPORTED):
                await helper.put_archive(_PLACE, io.BytesIO(_archive({"execd": content})))
            if await _size(engine, helper) != len(content):
                raise RuntimeFailure(f"Docker did not keep the daemon in the volume {volume}")
    return volume


async def can_limit_disk(engine: Engine, names: Names) -> bool:
    """Whether the engine's storage keeps a container to a size: found out by asking for one."""
    try:
        async with _helper(engine, names, {"StorageOpt": {"size": str(1 << 30)}}):
            return True
    except RuntimeFailure:
        return False


async def why_not_started(engine: Engine, names: Names, volume: str, network: str, runtime: str) -> str:
    """Empty when containers start with this OCI runtime of the engine: found out by starting one."""
    host = {"Binds": [f"{volume}:{_PLACE}:ro"], "NetworkMode": network, "Runtime": runtime}
    try:
        async with (
            asyncio.timeout(TRIAL_SECONDS),
            _helper(engine, names, host, (f"{_PLACE}/execd", "--probe")) as trial,
        ):
            with explained("start a container"):
                async with leftovers.ended_on_failure(trial.id):
                    await trial.start()
                ended = await trial.wait()
    except TimeoutError:
        return f"nothing happened within {TRIAL_SECONDS:g} s"
    except RuntimeFailure as error:
        return error.message
    return f"it ended with status {ended['StatusCode']}" if ended["StatusCode"] else ""


async def remove(engine: Engine, names: Names, keep: str = "") -> None:
    """Remove the volumes of other versions, or all of them, that no sandbox uses any more."""
    with explained("list volumes"):
        found = await engine.docker.volumes.list(filters={"label": [names.label_filter]})
    for volume in found["Volumes"] or ():
        name = str(volume["Name"])
        if name == keep or not name.startswith(names.program("")):
            continue
        try:
            with explained("remove a volume"):
                await (await engine.docker.volumes.get(name)).delete()
        except (Absent, Busy) as reason:
            _log.info("docker.volume_kept", volume=name, reason=reason.message)


@asynccontextmanager
async def _helper(
    engine: Engine, names: Names, host: Mapping[str, object], command: Sequence[str] = ("none",)
) -> AsyncIterator[DockerContainer]:
    """A container that only exists, unless somebody starts it."""
    config: dict[str, Any] = {
        "Image": EMPTY_IMAGE,
        "Entrypoint": list(command),
        "Labels": names.labels,
        "HostConfig": host,
    }
    with explained("make a container for the daemon", Code.HOST_UNSUPPORTED):
        helper = await to_its_end(engine.docker.containers.create(config))
    try:
        yield helper
    finally:
        with explained("remove a container"):
            await to_its_end(helper.delete(force=True))


async def _size(engine: Engine, helper: DockerContainer) -> int | None:
    """The size of the program in the volume; None when there is none."""
    try:
        status = await engine.status(f"containers/{helper.id}/archive", {"path": f"{_PLACE}/execd"})
    except Absent:
        return None
    return int(status["size"])


async def _load_empty_image(engine: Engine, architecture: str) -> None:
    with explained("load an empty image", Code.HOST_UNSUPPORTED):
        try:
            with explained("find the empty image"):
                found = await engine.docker.images.inspect(EMPTY_IMAGE)
        except Absent:
            found = {}
        if found.get("Architecture") != architecture:
            await engine.docker.images.import_image(empty_image(architecture))


def empty_image(architecture: str) -> bytes:
    """An image with one empty directory, in the form of `docker save`."""
    layer = _archive({})
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [EMPTY_IMAGE], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    encoded = {name: json.dumps(body).encode() for name, body in files.items()}
    return _archive({**encoded, "layer.tar": layer})


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of executable files, always the same for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
