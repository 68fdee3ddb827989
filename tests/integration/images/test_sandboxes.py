# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Sandboxes that are started from images: what the image says holds, whatever the image is."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, Code, InvalidRequest
from support import registry
from support.images import (
    CHARACTER,
    ImageParts,
    LayoutWriter,
    archive,
    busybox,
    folder,
    link,
    member,
)
from support.machine import cannot_run, why_no_local_runtime
from support.server import Server

KEEP = {"Cmd": ["/bin/sleep", "600"]}


@dataclass
class Place:
    """A server that may take images from one layout, and that layout."""

    server: Server
    layout: LayoutWriter
    client: AsyncClient

    async def start(self, tag: str, parts: ImageParts, **more: Any) -> AsyncSandbox:
        """A sandbox of a new image."""
        self.layout.add(tag, parts)
        return await AsyncSandbox.create(self.layout.reference(tag), client=self.client, **more)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LayoutWriter:
    return LayoutWriter(tmp_path_factory.mktemp("layout") / "oci")


@pytest.fixture(scope="module")
def image_server(new_module_server: Any, written: LayoutWriter) -> Server:
    server: Server = new_module_server("local", f'[images]\nsources = ["{written.folder}"]\n')
    return server


@pytest.fixture
async def place(image_server: Server, written: LayoutWriter) -> AsyncIterator[Place]:
    async with AsyncClient(Connection(image_server.url, image_server.api_key)) as client:
        yield Place(image_server, written, client)
        await asyncio.to_thread(image_server.delete_all)


async def said(box: AsyncSandbox, *command: str) -> str:
    """What a program of the sandbox prints, started without a shell."""
    done = await box.commands.run(list(command))
    assert done.exit_code == 0, done
    return done.stdout.strip()


async def test_b081_environment_directory_and_user_are_the_images(place: Place) -> None:
    config = {
        **KEEP,
        "Env": ["GREETING=good  day", "PATH=/opt/tools:/bin"],
        "WorkingDir": "/not/there/yet",
        "User": "app",
        "Volumes": {"/var/lib/app": {}, "/tmp": {}},
    }
    tool = archive(folder("opt/tools"), member("opt/tools/tool", b"#!/bin/sh\necho tool\n", mode=0o755))
    async with await place.start("b081", ImageParts([busybox("pwd", "stat"), tool], config)) as box:
        assert await said(box, "sh", "-c", 'echo "$GREETING"') == "good  day"
        assert await said(box, "pwd") == "/not/there/yet"
        assert await said(box, "id") == "uid=1000(app) gid=1000(app)"
        assert await said(box, "sh", "-c", "echo $HOME") == "/home/app"
        assert await said(box, "tool") == "tool"
        assert await said(box, "ls", "-d", "/var/lib/app") == "/var/lib/app"
        assert await said(box, "stat", "-c", "%u", "/home/app") == "1000"


@pytest.mark.parametrize(
    ("config", "given", "expected"),
    [
        ({"Entrypoint": ["/bin/wrap"], "Cmd": ["a b", "c"]}, None, ["a b", "c"]),
        ({"Cmd": ["/bin/wrap", "only cmd"]}, None, ["only cmd"]),
        ({"Entrypoint": ["/bin/wrap", "first"]}, None, ["first"]),
        ({"Entrypoint": ["/bin/other"], "Cmd": ["x"]}, ["/bin/wrap", "mine"], ["mine"]),
    ],
)
async def test_b081_entrypoint_and_cmd_are_combined_as_an_engine_does(
    place: Place, config: dict[str, Any], given: list[str] | None, expected: list[str]
) -> None:
    script = b'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > /words\nexec sleep 600\n'
    wrap = archive(folder("bin"), member("bin/wrap", script, mode=0o755))
    tag = f"entry{abs(hash((str(config), str(given))))}"
    async with await place.start(tag, ImageParts([busybox(), wrap], config), entrypoint=given) as box:
        await _appears(box, "/words")
        assert (await box.files.read("/words")).splitlines() == expected


async def _appears(box: AsyncSandbox, path: str) -> None:
    for _ in range(100):
        if await box.files.exists(path):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


@pytest.mark.parametrize(("code", "state"), [(0, "Terminated"), (5, "Failed")])
async def test_b081_an_entrypoint_that_ends_is_in_the_state(place: Place, code: int, state: str) -> None:
    config = {"Cmd": ["sh", "-c", f"exit {code}"], "Env": ["PATH=/bin"]}
    box = await place.start(f"ends{code}", ImageParts([busybox()], config))
    for _ in range(100):
        info = await box.refresh()
        if info.state == state:
            break
        await asyncio.sleep(0.05)
    assert info.state == state and (code == 0 or str(code) in info.message), info


async def test_an_image_that_names_no_program_is_refused(place: Place) -> None:
    with pytest.raises(CasuloError) as failure:
        await place.start("silent", ImageParts([busybox()], {}))
    assert failure.value.code == Code.INVALID_ENTRYPOINT
    async with await AsyncSandbox.create(
        place.layout.reference("silent"), client=place.client, entrypoint=["/bin/sleep", "600"]
    ) as box:
        assert await said(box, "/bin/id") == "uid=0(root) gid=0(root)"


@pytest.fixture(params=["container", "gvisor"])
def isolation(request: pytest.FixtureRequest) -> str:
    """What the sandboxes of images are kept apart by."""
    if request.param == "gvisor" and (reason := why_no_local_runtime("gvisor")):
        cannot_run(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def static_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program that needs nothing: it waits, or says what it is told to."""
    if (go := shutil.which("go")) is None:
        cannot_run("no Go tool chain")
        raise AssertionError
    place = tmp_path_factory.mktemp("program")
    (place / "main.go").write_text(
        'package main\nimport ("fmt"; "os"; "time")\nfunc main() {\n'
        "if len(os.Args) > 1 { fmt.Println(os.Args[1]); return }\ntime.Sleep(time.Hour) }\n"
    )
    command = [go, "build", "-o", str(place / "app"), str(place / "main.go")]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0"}, timeout=120)
    return (place / "app").read_bytes()


async def test_b079_an_image_of_one_program(place: Place, static_program: bytes, isolation: str) -> None:
    parts = ImageParts([archive(member("app", static_program, mode=0o755))], {"Entrypoint": ["/app"]})
    async with await place.start("scratch", parts, isolation=isolation) as box:
        assert await said(box, "/app", "hello") == "hello"
        with pytest.raises(InvalidRequest, match="neither bash nor sh"):
            await box.commands.run("echo hello")
        await box.files.write("/data/made.txt", "made")
        assert await box.files.read("/data/made.txt") == "made"


async def test_osb_run_works_on_an_image_whose_own_program_ends_at_once(place: Place) -> None:
    place.layout.add("shell", ImageParts([busybox("echo")], {"Cmd": ["/bin/sh"]}))
    key = {"OPEN_SANDBOX_DOMAIN": place.server.domain, "OPEN_SANDBOX_API_KEY": place.server.api_key}
    words = ["run", "-i", place.layout.reference("shell"), "--", "/bin/echo", "hello"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "casulo.cli", *words],
        env={**os.environ, **key},
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"hello\n", done


@pytest.mark.parametrize("target", ["{}", "../../../../../../../../..{}"])
async def test_a_tmp_that_is_a_link_shows_nothing_of_the_host(
    place: Place, isolation: str, target: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as host:
        os.chmod(host, 0o777)
        (Path(host) / "of-the-host").touch()
        # The image has a directory of that name, lest the sandbox not start for want of one.
        parts = archive(folder(host.lstrip("/"), mode=0o777), member(".wh.tmp"))
        layers = [busybox("touch"), parts, archive(link("tmp", target.format(host)))]
        async with await place.start(
            f"tmp{isolation}{len(target)}", ImageParts(layers, KEEP), isolation=isolation
        ) as box:
            await said(box, "touch", "/tmp/of-the-sandbox")
            assert await said(box, "ls", "/tmp/") == "of-the-sandbox"
        assert os.listdir(host) == ["of-the-host"]


async def test_b083_another_machines_image_is_refused_with_both_names(place: Place) -> None:
    with pytest.raises(CasuloError) as failure:
        await place.start("foreign", ImageParts([busybox()], KEEP, architecture="arm64"))
    assert "arm64" in failure.value.message and "amd64" in failure.value.message
    place.layout.add_list(
        "both", ImageParts([busybox()], KEEP), ImageParts([archive()], KEEP, architecture="arm64")
    )
    async with await AsyncSandbox.create(place.layout.reference("both"), client=place.client) as box:
        assert await said(box, "/bin/id")


async def test_many_layers_and_what_they_took_away(place: Place) -> None:
    layers = [busybox()]
    layers += [archive(member(f"count/{n}", b"%d" % n), member("count/last", b"%d" % n)) for n in range(100)]
    layers += [archive(member("count/.wh.0")), archive(folder("home/.wh..wh..opq"), folder("home/new"))]
    async with await place.start("deep", ImageParts(layers, KEEP)) as box:
        assert await box.files.read("/count/last") == "99"
        assert await said(box, "ls", "/home") == "new"
        assert "count/0" not in await said(box, "sh", "-c", "ls -d /count/*")


HOSTILE: dict[str, bytes] = {
    "proc-link": archive(link("proc", "/etc")),
    "dev-link": archive(link("dev", "/tmp")),
    "sys-file": archive(member("sys", b"no directory")),
    "opt-link": archive(link("opt", "/../../../../etc")),
    "daemon-link": archive(folder("opt/opensandbox"), link("opt/opensandbox/execd", "/bin/ls")),
    "hosts-link": archive(folder("etc"), link("etc/hosts", "/etc/passwd"), link("etc/resolv.conf", "/x")),
    "passwd-gone": archive(folder("etc"), member("etc/.wh.passwd"), member("etc/.wh.group")),
    "loop": archive(link("a", "b"), link("b", "a"), folder("etc"), link("etc/hostname", "../a")),
    "closed-root": archive(folder("./", mode=0o555)),
}
MAY_BE_REFUSED = ("proc-link", "dev-link", "sys-file", "opt-link")


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_image_starts_or_is_refused_and_touches_nothing(
    place: Place, name: str, isolation: str
) -> None:
    before = {path: Path(path).stat().st_mtime_ns for path in ("/etc/passwd", "/etc/hosts", "/etc")}
    try:
        parts = ImageParts([busybox(), HOSTILE[name]], KEEP)
        async with await place.start(f"hostile-{name}", parts, isolation=isolation) as box:
            if name != "daemon-link":  # the daemon then stands where that image's programs point to
                assert (await said(box, "/bin/id")).startswith("uid=0")
                assert "casulo-" in await said(box, "/bin/cat", "/etc/hosts")
    except CasuloError as refused:
        assert refused.code in (Code.IMAGE_INVALID, Code.SANDBOX_START_FAILED), refused
        assert name in MAY_BE_REFUSED, refused
    after = {path: Path(path).stat().st_mtime_ns for path in before}
    assert after == before


async def test_an_etc_that_is_a_link_is_refused(place: Place) -> None:
    bare = archive(folder("real"), link("etc", "/real"))
    with pytest.raises(CasuloError) as failure:
        await place.start("etc-link", ImageParts([bare], {"Cmd": ["/x"]}))
    assert failure.value.code == Code.IMAGE_INVALID


@pytest.mark.parametrize("name", ["proc-link", "dev-link", "sys-file"])
async def test_what_hides_the_kernels_file_systems_is_refused_by_name(place: Place, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"its /{name[: name.index('-')]} is no directory") as failure:
        await place.start(f"refused-{name}", ImageParts([busybox(), HOSTILE[name]], KEEP))
    assert failure.value.code == Code.IMAGE_INVALID


@pytest.mark.parametrize("config", [{"WorkingDir": "/etc/passwd/x"}, {"Volumes": {"/bin/busybox": {}}}])
async def test_a_file_where_a_directory_is_wanted_is_the_images_fault(place: Place, config: dict) -> None:
    name = "occupied-" + next(iter(config)).lower()
    with pytest.raises(InvalidRequest, match="not a directory") as failure:
        await place.start(name, ImageParts([busybox()], {**KEEP, **config}))
    assert failure.value.code == Code.IMAGE_INVALID and "WORKDIR" in failure.value.hint


async def test_the_root_has_the_images_own_mode_and_owner(place: Place) -> None:
    plain = ImageParts([busybox()], KEEP)
    own = ImageParts([busybox(), archive(folder("./", mode=0o711)), archive(folder("late"))], KEEP)
    for tag, parts, mode in (("plain-root", plain, "755"), ("own-root", own, "711")):
        async with await place.start(tag, parts) as box:
            assert await said(box, "/bin/busybox", "stat", "-c", "%a %u", "/") == f"{mode} 0"


async def test_devices_and_set_user_id_give_nothing(place: Place) -> None:
    program = Path(shutil.which("busybox") or cannot_run("busybox is not installed"))
    extra = archive(
        folder("dev"),
        member("dev/kmsg", kind=CHARACTER),
        member("bin/raised", program.read_bytes(), mode=0o4755),
    )
    config = {**KEEP, "User": "1000:1000"}
    async with await place.start("devices", ImageParts([busybox(), extra], config)) as box:
        done = await box.commands.run(["/bin/cat", "/dev/kmsg"])
        assert done.exit_code != 0
        done = await box.commands.run(["/bin/raised", "id"])
        assert "uid=0" not in done.stdout, "set-user-id must not work"


async def test_nothing_of_the_host_shows_in_an_image(place: Place) -> None:
    async with await place.start("bare", ImageParts([busybox()], KEEP)) as box:
        mounts = await said(box, "/bin/cat", "/proc/self/mounts")
        assert str(place.server.data_dir) not in mounts and "/usr" not in mounts
        assert await said(box, "/bin/ls", "/") == "\n".join(
            ["bin", "dev", "etc", "home", "opt", "proc", "root", "sys", "tmp"]
        )


async def test_a_held_image_stays_until_the_last_sandbox_is_gone(
    new_server: Any, written: LayoutWriter
) -> None:
    server = new_server("local", f'[images]\nsources = ["{written.folder}"]\n')
    written.add("held", ImageParts([busybox()], KEEP))
    body = {"image": {"uri": written.reference("held")}, "resourceLimits": {}, "timeout": 600}
    made = await asyncio.to_thread(server.request, "POST", "/v1/sandboxes", json=body)
    sandbox_id = made.json()["id"]
    holds = server.data_dir / "images/holds"
    assert os.listdir(holds) == [sandbox_id]
    server.crash()
    (holds / "of-nobody").write_text((holds / sandbox_id).read_text())
    server.start()
    assert os.listdir(holds) == [sandbox_id]
    await asyncio.to_thread(server.delete_all)
    assert os.listdir(holds) == []


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_b045_the_server_answers_while_a_registry_does_not(place: Place, silent_registry: str) -> None:
    image = f"{silent_registry}/never:comes"
    slow = [
        asyncio.create_task(AsyncSandbox.create(image, client=place.client, entrypoint=["/x"]))
        for _ in range(5)
    ]
    await asyncio.sleep(0.5)
    async with await place.start("beside", ImageParts([busybox()], KEEP)) as box:
        waits = []
        for _ in range(40):
            begun = time.monotonic()
            await place.client.list()
            await place.client.get(box.id)
            waits.append(time.monotonic() - begun)
            await asyncio.sleep(0.02)
        assert sorted(waits)[-3] < 2.0, "far above what it takes, far below what a stuck server would"
    pending = [s for s in (await place.client.list(page_size=50)).items if s.state == "Pending"]
    assert len(pending) == 5
    for sandbox in pending:
        await place.client.kill(sandbox.id)
    assert all(isinstance(e, CasuloError) for e in await asyncio.gather(*slow, return_exceptions=True))
    assert not (await place.client.list()).items


async def test_credentials_of_a_request_reach_the_registry_and_no_file(
    new_server: Any, tmp_path: Path, written: LayoutWriter
) -> None:
    if reason := registry.why_not():
        cannot_run(reason)
    written.add("guarded", ImageParts([busybox()], KEEP))
    (tmp_path / "registry").mkdir()
    with registry.serving(tmp_path / "registry", protected=True) as guarded:
        name = guarded.push(written.reference("guarded"), "team/app:1")
        server = new_server("local", f'[images.registries."{guarded.address}"]\ninsecure = true\n')
        body: dict[str, Any] = {"image": {"uri": name}, "resourceLimits": {}, "timeout": 600}
        refused = server.request("POST", "/v1/sandboxes", json=body)
        assert refused.status_code in (401, 403, 404) or refused.json()["code"], refused.text
        assert refused.status_code >= 400
        body["image"]["auth"] = {"username": registry.USER, "password": registry.PASSWORD}
        made = server.request("POST", "/v1/sandboxes", json=body)
        assert made.status_code == 202, made.text
        assert registry.PASSWORD not in made.text
        told = server.request("GET", f"/v1/sandboxes/{made.json()['id']}").json()
        assert told["image"] == {"uri": name}
        server.delete_all()
        found = subprocess.run(
            ["grep", "-rl", registry.PASSWORD, str(server.data_dir)], capture_output=True, text=True
        )
        assert found.stdout == ""
