# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Images on the Docker runtime: what they say holds as with the engine itself, whatever they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casulo.client import AsyncClient, AsyncSandbox, Connection, InvalidRequest
from casulo.model.errors import CasuloError, Code
from casulo.runtimes.docker.program import empty_image
from support import registry, trees
from support.dockered import Place, said
from support.engine import BUSYBOX, IMAGE, STATIC, Engine, busybox_files
from support.images import ImageParts, LayoutWriter, busybox
from support.machine import cannot_run

KEEP = 'CMD ["sleep", "600"]'


async def test_b081_environment_directory_and_user_are_the_images(place: Place) -> None:
    changes = ('ENV GREETING="good  day"', "ENV PATH=/bin", "WORKDIR /not/there/yet", "USER app", KEEP)
    name = place.engine.build("casulo-test/words:1", trees.files(busybox_files()), *changes)
    async with await place.start(name) as box:
        assert await said(box, "sh", "-c", 'echo "$GREETING"; pwd; echo $HOME') == (
            "good  day\n/not/there/yet\n/home/app"
        )
        assert await said(box, "id") == "uid=1000(app) gid=1001(app) groups=1002(extra)"


async def test_a_users_accounts_are_found_along_links(place: Place) -> None:
    files = busybox_files()
    files["accounts/p"] = files.pop("etc/passwd")
    files["etc/passwd"] = "->../accounts/p"
    name = place.engine.build("casulo-test/links:1", trees.files(files), "USER app:extra", KEEP)
    async with await place.start(name) as box:
        assert (await said(box, "/bin/id")).startswith("uid=1000(app) gid=1002(extra)")


async def test_an_unknown_user_is_refused(place: Place) -> None:
    name = place.engine.build("casulo-test/nobody:1", trees.files(busybox_files()), "USER ghost", KEEP)
    with pytest.raises(InvalidRequest, match="ghost"):
        await place.start(name)


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        (('ENTRYPOINT ["/bin/wrap"]', 'CMD ["a b", "c"]'), None, "a b|c|"),
        (('CMD ["/bin/wrap", "only cmd"]',), None, "only cmd|"),
        (("ENTRYPOINT exec /bin/wrap shell form",), None, "shell|form|"),
        (('ENTRYPOINT ["/bin/other"]', 'CMD ["x"]'), ["/bin/wrap", "mine"], "mine|"),
    ],
)
async def test_b081_entrypoint_and_cmd_are_combined_as_the_engine_does(
    place: Place, changes: tuple[str, ...], given: list[str] | None, expected: str
) -> None:
    wrap = '#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done\necho\nexec sleep 600\n'
    archive = trees.files({**busybox_files(), "bin/printf": "->busybox", "bin/wrap": wrap})
    name = place.engine.build("casulo-test/wrapped:1", archive, *changes)
    async with await place.start(name, entrypoint=given) as box:
        for _ in range(100):
            path = f"/v1/sandboxes/{box.id}/diagnostics/logs?scope=container"
            content = place.server.request("GET", path).json()["content"]
            if content:
                break
            await asyncio.sleep(0.05)
        assert content.splitlines()[0] == expected


async def test_b079_an_image_of_one_program(place: Place) -> None:
    async with await place.start(STATIC, entrypoint=["/program", "--boot-fd", "0"]) as ending:
        assert (await ending.refresh()).state in ("Running", "Failed"), "it ends by itself, having no channel"
    name = place.engine.build("casulo-test/tail:1", trees.files({"tail": busybox_files()["bin/busybox"]}))
    async with await place.start(name, entrypoint=["/tail", "-f", "/dev/null"]) as box:
        assert (await box.commands.run(["/tail", "-c", "3", "/proc/sys/kernel/ostype"])).stdout == "ux\n"
        with pytest.raises(InvalidRequest, match="neither bash nor sh"):
            await box.commands.run("echo hello")
        await box.files.write("/data/made.txt", "made")
        assert await box.files.read("/data/made.txt") == "made"


async def test_python_and_shell_cells(place: Place) -> None:
    async with await place.start(IMAGE) as box:
        assert (await box.code.run("x = 6\nx * 7")).text == "42"
        assert (await box.code.run("echo $((6 * 7))", language="bash")).stdout == "42\n"


async def test_b083_another_machines_image_is_refused_with_both_names(place: Place) -> None:
    foreign = empty_image("arm64").replace(b"casulo/empty:1", b"casulo/alien:1")
    place.engine.docker("load", stdin=foreign)
    with pytest.raises(CasuloError) as failure:
        await place.start("casulo/alien:1", entrypoint=["/bin/sh"])
    assert "arm64" in failure.value.message and "amd64" in failure.value.message


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ("host", Code.IMAGE_UNSUPPORTED),
        ("oci:/somewhere:1", Code.IMAGE_UNSUPPORTED),
        ("docker-daemon:casulo-test/none:1", Code.IMAGE_NOT_FOUND),
        ("Wrong:Name:1", Code.INVALID_PARAMETER),
    ],
)
async def test_what_cannot_be_an_image_is_refused(place: Place, image: str, code: str) -> None:
    with pytest.raises(CasuloError) as failure:
        await place.start(image)
    assert failure.value.code == code and failure.value.message


async def test_an_image_that_names_no_program_is_refused(place: Place) -> None:
    name = place.engine.build("casulo-test/silent:1", trees.files(busybox_files()))
    with pytest.raises(CasuloError) as failure:
        await place.start(name)
    assert failure.value.code == Code.INVALID_ENTRYPOINT


async def test_pulls_with_the_logins_of_request_and_configuration(
    place: Place, new_server, tmp_path: Path
) -> None:
    if reason := registry.why_not():
        cannot_run(reason)
    layout = LayoutWriter(tmp_path / "oci")
    layout.add("guarded", ImageParts([busybox()], {"Cmd": ["/bin/sleep", "600"]}))
    (tmp_path / "registry").mkdir()
    login = {"username": registry.USER, "password": registry.PASSWORD}
    with registry.serving(tmp_path / "registry", protected=True) as guarded:
        name = guarded.push(layout.reference("guarded"), "team/app:1")
        with pytest.raises(CasuloError) as denied:
            await place.start(name)
        assert denied.value.code == Code.IMAGE_ACCESS_DENIED
        with_login = {"image": {"uri": name, "auth": login}}
        boxes = await asyncio.gather(*(place.start(name, request=with_login) for _ in range(3)))
        assert guarded.requests("/blobs/sha256:") <= 6, "concurrent pulls of one image are one pull"
        for box in boxes:
            assert (await said(box, "/bin/id")).startswith("uid=0")
            assert registry.PASSWORD not in place.engine.docker("inspect", place.container(box))
            await box.kill()
        place.engine.docker("rmi", name)
        table = f'[images.registries."{guarded.address}"]\n'
        server = new_server("docker", table + "".join(f'{k} = "{v}"\n' for k, v in login.items()))
        async with (
            AsyncClient(Connection(server.url, server.api_key)) as client,
            await AsyncSandbox.create(name, client=client) as box,
        ):
            assert (await said(box, "/bin/id")).startswith("uid=0")


def test_the_engines_own_images_are_left_alone(place: Place, engine: Engine) -> None:
    listed = engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    assert {IMAGE, BUSYBOX, STATIC} <= set(listed)
