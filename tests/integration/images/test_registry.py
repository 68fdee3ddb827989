# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Pulling from a real registry: with and without a password, once for all who wait, and never half."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from casulo.images.ids import PLAIN, Ids
from casulo.images.report import Progress
from casulo.images.settings import ImagesSettings, RegistrySettings
from casulo.images.store import ImageStore
from casulo.model.credentials import Credentials
from casulo.model.errors import (
    CasuloError,
    Code,
    InvalidRequest,
    NotFound,
    TimedOut,
    Unavailable,
    Unsupported,
)
from casulo.model.sandbox import Platform
from support import registry
from support.images import ImageParts, LayoutWriter, archive, folder, member
from support.machine import cannot_run
from support.registry import Registry

LOGIN = Credentials(registry.USER, registry.PASSWORD)
BASE = archive(folder("etc"), member("etc/name", b"base"), member("big", os.urandom(3 << 20)))
TOP = archive(member("etc/name", b"top"))


def mine() -> Ids:
    return PLAIN if os.geteuid() == 0 else Ids(None)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> LayoutWriter:
    made = LayoutWriter(tmp_path_factory.mktemp("layout") / "oci")
    made.add("one", ImageParts([BASE, TOP], {"Cmd": ["/bin/tool"]}))
    made.add_list("list", ImageParts([BASE]), ImageParts([TOP], architecture="arm64"))
    made.add_list(
        "foreign", ImageParts([BASE], architecture="arm64"), ImageParts([TOP], architecture="s390x")
    )
    return made


def started(tmp_path_factory: pytest.TempPathFactory, protected: bool) -> Iterator[Registry]:
    if reason := registry.why_not():
        cannot_run(reason)
    with registry.serving(tmp_path_factory.mktemp("registry"), protected=protected) as found:
        yield found


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory, layout: LayoutWriter) -> Iterator[Registry]:
    for found in started(tmp_path_factory, False):
        for tag in ("one", "list", "foreign"):
            found.push(layout.reference(tag), f"team/app:{tag}")
        yield found


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory: pytest.TempPathFactory, layout: LayoutWriter) -> Iterator[Registry]:
    for found in started(tmp_path_factory, True):
        found.push(layout.reference("one"), "team/app:one")
        yield found


@pytest.fixture
def silent() -> Iterator[str]:
    """A registry that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def settings(*registries: Registry, **more: object) -> ImagesSettings:
    table = {r.address: RegistrySettings(insecure=True) for r in registries}
    return ImagesSettings.model_validate({"registries": table, **more})


@contextlib.asynccontextmanager
async def opened(root: Path, chosen: ImagesSettings) -> AsyncIterator[ImageStore]:
    store = ImageStore(root, chosen, mine())
    await store.open()
    yield store
    await store.close()
    assert list((root / "tmp").iterdir()) == []
    assert list((root / "locks").iterdir()) == []


async def test_an_image_is_pulled_once_and_then_here(tmp_path: Path, open_registry: Registry) -> None:
    async with opened(tmp_path, settings(open_registry)) as store:
        seen: list[Progress] = []
        image = await store.resolve(f"{open_registry.address}/team/app:one", progress=seen.append)
        assert [(layer / "etc/name").read_text() for layer in image.layers] == ["base", "top"]
        assert image.config.cmd == ("/bin/tool",)
        assert seen[0].all_layers == 2 and seen[-1].layers == 2 and seen[-1].bytes == seen[-1].total > 3 << 20
        before = open_registry.requests("GET /v2/team/app")
        assert await store.resolve(f"{open_registry.address}/team/app:one") == image
        assert open_registry.requests("GET /v2/team/app") == before


async def test_an_image_is_found_again_by_its_digest(tmp_path: Path, open_registry: Registry) -> None:
    async with opened(tmp_path, settings(open_registry)) as store:
        image = await store.pull(f"{open_registry.address}/team/app:list")
        by_digest = await store.local(f"{open_registry.address}/team/app@{image.digest}")
        assert by_digest is not None and by_digest.digest == image.digest


async def test_the_digest_in_a_name_is_what_comes(tmp_path: Path, open_registry: Registry) -> None:
    async with opened(tmp_path, settings(open_registry)) as store:
        first = await store.pull(f"{open_registry.address}/team/app:one")
        await store.remove(first.digest)
        again = await store.resolve(f"{open_registry.address}/team/app@{first.digest}")
        assert again.digest == first.digest


async def test_the_platform_is_chosen_from_a_list(tmp_path: Path, open_registry: Registry) -> None:
    async with opened(tmp_path, settings(open_registry)) as store:
        name = f"{open_registry.address}/team/app:list"
        amd, arm = Platform("linux", "amd64"), Platform("linux", "arm64")
        assert (await store.resolve(name, platform=amd)).platform == "linux/amd64"
        assert (await store.resolve(name, platform=arm)).platform == "linux/arm64"
        assert (await store.resolve(name, platform=amd)).platform == "linux/amd64"


@pytest.mark.parametrize(
    ("tag", "offered"), [("foreign", "linux/arm64, linux/s390x"), ("one", "linux/amd64")]
)
async def test_b083_the_wrong_platform_is_refused_with_both_names(
    tmp_path: Path, open_registry: Registry, tag: str, offered: str
) -> None:
    wanted = Platform("linux", "riscv64")
    async with opened(tmp_path, settings(open_registry)) as store:
        with pytest.raises(Unsupported) as failure:
            await store.resolve(f"{open_registry.address}/team/app:{tag}", platform=wanted)
        assert offered in failure.value.message and "linux/riscv64" in failure.value.message
        assert await store.list() == []


async def test_a_password_is_needed_and_taken_per_request(tmp_path: Path, closed_registry: Registry) -> None:
    name = f"{closed_registry.address}/team/app:one"
    async with opened(tmp_path, settings(closed_registry)) as store:
        for login in (None, Credentials(registry.USER, "wrong")):
            with pytest.raises(InvalidRequest) as failure:
                await store.resolve(name, login)
            assert failure.value.code == Code.IMAGE_ACCESS_DENIED
            assert "wrong" not in failure.value.message
        assert len((await store.resolve(name, LOGIN)).layers) == 2


async def test_a_password_is_taken_from_the_settings_or_a_login_file(
    tmp_path: Path, closed_registry: Registry
) -> None:
    name = f"{closed_registry.address}/team/app:one"
    configured = RegistrySettings(insecure=True, username=registry.USER, password=registry.PASSWORD)
    chosen = ImagesSettings(registries={closed_registry.address: configured})
    assert registry.PASSWORD not in repr(chosen)
    async with opened(tmp_path / "a", chosen) as store:
        await store.resolve(name)
    file = tmp_path / "auth.json"
    login = base64.b64encode(f"{registry.USER}:{registry.PASSWORD}".encode()).decode()
    file.write_text(json.dumps({"auths": {closed_registry.address: {"auth": login}}}))
    async with opened(tmp_path / "b", settings(closed_registry, auth_file=file)) as store:
        await store.resolve(name)


async def test_a_password_is_never_an_argument(tmp_path: Path, closed_registry: Registry) -> None:
    seen: set[bytes] = set()
    async with opened(tmp_path, settings(closed_registry)) as store:
        pulling = asyncio.create_task(store.resolve(f"{closed_registry.address}/team/app:one", LOGIN))
        while not pulling.done():
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(place.read_bytes())
            await asyncio.sleep(0.005)
        await pulling
    assert any(b"skopeo" in line for line in seen)
    assert not any(b"open sesame" in line for line in seen)


@pytest.mark.parametrize("name", ["team/app:absent", "nobody/nothing:1"])
async def test_what_is_not_there_is_not_found(tmp_path: Path, open_registry: Registry, name: str) -> None:
    async with opened(tmp_path, settings(open_registry)) as store:
        with pytest.raises(NotFound) as failure:
            await store.resolve(f"{open_registry.address}/{name}")
        assert failure.value.code == Code.IMAGE_NOT_FOUND


async def test_plain_http_needs_permission(tmp_path: Path, open_registry: Registry) -> None:
    async with opened(tmp_path, ImagesSettings()) as store:
        with pytest.raises(Unavailable) as failure:
            await store.resolve(f"{open_registry.address}/team/app:one")
        assert "insecure = true" in failure.value.hint


async def test_a_registry_that_nobody_serves_is_unavailable(tmp_path: Path) -> None:
    async with opened(tmp_path, ImagesSettings()) as store:
        with pytest.raises(Unavailable):
            await store.resolve("127.0.0.1:9/team/app:one")


async def test_b045_a_silent_registry_ends_in_a_timeout_and_blocks_nothing(
    tmp_path: Path, silent: str
) -> None:
    chosen = ImagesSettings(registries={silent: RegistrySettings(insecure=True)}, stall_timeout_seconds=2)
    async with opened(tmp_path, chosen) as store:
        pulling = asyncio.create_task(store.resolve(f"{silent}/team/app:one"))
        worst = 0.0
        loop = asyncio.get_running_loop()
        while not pulling.done():
            begun = loop.time()
            await asyncio.sleep(0.01)
            worst = max(worst, loop.time() - begun - 0.01)
        with pytest.raises(TimedOut) as failure:
            await pulling
        assert failure.value.code == Code.IMAGE_PULL_TIMEOUT
        assert worst < 1  # far from the two seconds that the worker waits; busy machines take their time


async def test_concurrent_pulls_fetch_each_layer_once(tmp_path: Path, open_registry: Registry) -> None:
    """Two stores stand for two processes: they share nothing but the folder."""
    name = f"{open_registry.address}/team/app:one"
    layers = 2
    before = open_registry.requests("GET /v2/team/app/blobs")
    async with (
        opened(tmp_path, settings(open_registry)) as one,
        opened(tmp_path, settings(open_registry)) as two,
    ):
        images = await asyncio.gather(*(store.resolve(name) for store in (one, two, one, two)))
    assert len({image.digest for image in images}) == 1
    configurations = 2  # each of the two workers reads it
    assert open_registry.requests("GET /v2/team/app/blobs") - before == layers + configurations


async def test_a_damaged_blob_is_refused_and_leaves_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, open_registry: Registry
) -> None:
    layer = archive(member("only/here", b"x" * 5000))
    made = LayoutWriter(tmp_path_factory.mktemp("damaged") / "oci")
    made.add("bad", ImageParts([layer], compress=False))
    name = open_registry.push(made.reference("bad"), "team/damaged:bad")
    blob = open_registry.blob(made.blob(layer)["digest"])
    blob.write_bytes(blob.read_bytes().replace(b"xxxx", b"yyyy"))
    async with opened(tmp_path / "images", settings(open_registry)) as store:
        with pytest.raises(CasuloError) as failure:
            await store.resolve(name)
        assert failure.value.code in (Code.IMAGE_INVALID, Code.IMAGE_PULL_FAILED)
        assert await store.list() == []
        assert list((tmp_path / "images/l").iterdir()) == []


async def test_b043_a_cancelled_pull_ends_its_processes(tmp_path: Path, silent: str) -> None:
    async with opened(
        tmp_path, ImagesSettings(registries={silent: RegistrySettings(insecure=True)})
    ) as store:
        pulling = asyncio.create_task(store.resolve(f"{silent}/team/app:one"))
        while not processes(silent):
            await asyncio.sleep(0.01)
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        for _ in range(100):
            if not processes(silent):
                break
            await asyncio.sleep(0.01)
        assert processes(silent) == []
        assert await store.list() == []


def processes(words: str) -> list[str]:
    told = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [
        line for line in told.splitlines() if line.startswith("skopeo") or "/skopeo" in line if words in line
    ]
