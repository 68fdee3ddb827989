# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""gVisor under a Docker engine: sandboxes, files, pause and limits; and a gVisor that starts nothing.

An engine of its own knows runsc by a wrapper. Releases of runsc before 2024 take every network namespace
of Linux 6.10 and later for the host's own; the wrapper hides what misleads them, which is nothing that
an engine does by itself. So this shows that the runtime works with a runsc that works.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from casulo.client import AsyncClient, AsyncSandbox, CasuloError, Connection
from support import engine as engines
from support import trees
from support.dockered import said
from support.engine import BUSYBOX, FOREVER, IMAGE, Engine
from support.machine import cannot_run
from support.server import Server

_WRAPPER = """#!/bin/sh
exec unshare --mount --propagation slave /bin/sh -c '
    mount --bind /proc {place}/proc && mount --bind {place}/empty /proc/sys/net && exec {runsc} "$@"
' sh "$@"
"""

_HALF = """#!/bin/sh
for word; do case $word in start) echo it does not start >&2; exit 1 ;; esac; done
exec {runsc} "$@"
"""


@pytest.fixture(scope="module")
def gvisor_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with `runsc`, and with `runsc-broken`, which ends at once."""
    runsc = shutil.which("runsc")
    if reason := engines.why_not() or ("" if runsc else "runsc is not installed"):
        cannot_run(reason)
    place = tmp_path_factory.mktemp("runsc")
    for name in ("proc", "empty"):
        (place / name).mkdir()
    wrapper = place / "runsc"
    wrapper.write_text(_WRAPPER.format(place=place, runsc=runsc))
    broken = place / "broken"
    broken.write_text("#!/bin/sh\necho this one is broken >&2\nexit 1\n")
    for program in (wrapper, broken):
        program.chmod(0o755)
    config = place / "daemon.json"
    half = place / "runsc-half"
    half.write_text(_HALF.format(runsc=runsc))
    half.chmod(0o755)
    known = {
        "runsc-half": {"path": str(half), "runtimeArgs": ["--platform=ptrace"]},
        "runsc": {"path": str(wrapper), "runtimeArgs": ["--platform=ptrace"]},
        "runsc-broken": {"path": str(broken)},
    }
    config.write_text(json.dumps({"runtimes": known}))
    with engines.running("--config-file", str(config)) as engine:
        engine.build(IMAGE, trees.debian(engine.folder), *engines.DEBIAN)
        engine.build(BUSYBOX, trees.files(engines.busybox_files()), FOREVER)
        yield engine


def _server(folder: Path, engine: Engine, settings: str = "") -> Server:
    return Server(folder, "docker", engine.settings + settings, IMAGE)


@pytest.fixture(scope="module")
def served(gvisor_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    selectable = 'selectable_runtimes = ["runsc", "runsc-broken"]\nsubnet = "10.197.0.0/24"\n'
    server = _server(tmp_path_factory.mktemp("server-docker-gvisor"), gvisor_engine, selectable).start()
    yield server
    server.delete_all()
    server.stop()


@pytest.fixture
async def client(served: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(served.url, served.api_key)) as made:
        yield made


async def test_sandboxes_live_in_gvisors_kernel(client: AsyncClient) -> None:
    async with await AsyncSandbox.create(IMAGE, isolation="gvisor", client=client) as box:
        assert "4.4.0" in await said(box, "cat", "/proc/version"), "gVisor's kernel says so of itself"
        done = await box.commands.run("echo out; echo err >&2; exit 7")
        assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 7)
        content = bytes(range(256)) * 4096
        await box.files.write("/workspace/file", content)
        assert await box.files.read_bytes("/workspace/file") == content
        await box.pause()
        assert (await box.refresh()).state == "Paused"
        await box.resume()
        assert await said(box, "wc", "-c", "/workspace/file") == f"{len(content)} /workspace/file"
    ending = ["sh", "-c", "sleep 1; exit 5"]
    async with await AsyncSandbox.create(
        BUSYBOX, entrypoint=ending, isolation="gvisor", client=client
    ) as short:
        for _ in range(600):
            if (info := await short.refresh()).state == "Failed":
                break
            await asyncio.sleep(0.05)
        assert "code 5" in info.message, info


async def test_a_runtime_that_starts_nothing_is_refused_early(
    client: AsyncClient, gvisor_engine: Engine
) -> None:
    before = gvisor_engine.ours()["containers"]
    extensions = {"casulo.docker_runtime": "runsc-broken"}
    with pytest.raises(CasuloError, match="starts nothing here"):
        await AsyncSandbox.create(IMAGE, extensions=extensions, client=client)
    assert gvisor_engine.ours()["containers"] == before
    async with await AsyncSandbox.create(
        IMAGE, extensions={"casulo.docker_runtime": "runsc"}, client=client
    ) as box:
        assert "4.4.0" in await said(box, "cat", "/proc/version")


def test_a_server_whose_runtime_starts_nothing_says_so(gvisor_engine: Engine, tmp_path: Path) -> None:
    for name, why in (("runsc-broken", "starts nothing with this engine"), ("kata", "no runtime 'kata'")):
        server = _server(tmp_path / name, gvisor_engine, f'docker_runtime = "{name}"\n')
        with pytest.raises(AssertionError, match="did not start"):
            server.start()
        assert why in server.output, server.output
    assert not [each for each in gvisor_engine.ours()["containers"] if "probe" in each]


def test_what_a_failed_start_leaves_is_ended(gvisor_engine: Engine, tmp_path: Path) -> None:
    """The runtime makes containers, gVisor's programs in them, and starts none."""
    server = _server(tmp_path / "half", gvisor_engine, 'docker_runtime = "runsc-half"\n')
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    assert "starts nothing with this engine" in server.output, server.output
    for _ in range(100):
        told = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in told.splitlines() if gvisor_engine.folder.name in line]
        left = [line for line in lines if "-id " in line or line.startswith("runsc-")]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(left)


async def test_kata_runs_where_it_is(gvisor_engine: Engine) -> None:
    """`docker_runtime = "kata"` is the engine's to carry out: here it is only shown to be refused without."""
    if shutil.which("containerd-shim-kata-v2") is None:
        cannot_run("Kata Containers is not installed; docker_runtime = 'kata' is untested")
    kernel = gvisor_engine.docker(
        "run", "--rm", "--runtime", "io.containerd.kata.v2", BUSYBOX, "cat", "/proc/version"
    )
    assert kernel != Path("/proc/version").read_text()
