# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Ends that no daemon wrote down, and images that engines describe or refuse."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from aiodocker import Docker

from casulo.images.reference import parse
from casulo.model.errors import Code, InvalidRequest, NotFound, Unavailable, Unsupported
from casulo.model.sandbox import Exit
from casulo.runtimes.docker.ends import unrecorded
from casulo.runtimes.docker.engine import explained
from casulo.runtimes.docker.images import EngineImage, named, refused
from casulo.runtimes.docker.program import empty_image
from casulo.runtimes.endings import last_exit


async def test_an_engine_that_is_away_is_told_without_its_address(tmp_path: Path) -> None:
    async with Docker(url=f"unix://{tmp_path}/docker.sock") as docker:
        with pytest.raises(Unavailable) as away, explained("look at an image", Code.IMAGE_NOT_FOUND):
            await docker.images.inspect("x")
    assert away.value.code == Code.RUNTIME_UNAVAILABLE, "the image is not to blame"
    assert "No such file" in away.value.message and str(tmp_path) not in away.value.message
    assert "[docker] host" in away.value.hint


@pytest.mark.parametrize(
    ("code", "oom", "expected"),
    [
        (0, False, Exit(0)),
        (3, False, Exit(3)),
        (137, False, Exit(None, "SIGKILL")),
        (137, True, Exit(None, "SIGKILL", oom=True)),
        (255, False, Exit(255)),
    ],
)
def test_an_end_that_nobody_wrote_down(code: int, oom: bool, expected: Exit) -> None:
    assert unrecorded(code, oom) == expected


def test_the_last_well_formed_exit_counts() -> None:
    lines = ['{"event":"ready"}', '{"event":"exit","code":7}', "rubbish", '["exit"]', '{"event":"exi']
    assert last_exit(lines) == Exit(7)
    assert last_exit(['{"event":"exit","code":"x","signal":"SIGTERM","oom":1}']) == Exit(None, "SIGTERM")
    assert last_exit([]) is None


def test_images_are_read_as_engines_tell_them() -> None:
    config = {"Cmd": ["a", "b c"], "Entrypoint": None, "Env": ["A=b=c"], "User": "app", "WorkingDir": ""}
    image = EngineImage.parse({"Id": "sha256:1", "Os": "linux", "Architecture": "arm64", "Config": config})
    assert (image.config.cmd, image.config.entrypoint, image.config.user) == (("a", "b c"), (), "app")
    assert (image.config.env, image.config.workdir, image.architecture) == ({"A": "b=c"}, "/", "arm64")
    assert EngineImage.parse({"Id": "x", "Config": None}).config.cmd == ()


def test_only_what_an_engine_can_have_is_named() -> None:
    assert named("python").canonical == "docker.io/library/python:latest"
    for text in ("oci:/x:1", "docker-archive:/x.tar"):
        with pytest.raises(Unsupported, match="takes no"):
            named(text)


def test_refusals_say_whose_turn_it_is() -> None:
    reference = parse("registry.example:5000/a:1")
    layer = "failed to register layer: Error processing tar file({}): "
    assert isinstance(
        refused(reference, layer.format("duplicates of file paths not supported")), InvalidRequest
    )
    full = refused(reference, layer.format("exit status 1") + "write /x: no space left on device")
    assert isinstance(full, Unavailable)
    denied = refused(reference, "pull access denied for a, repository does not exist or may require login")
    assert isinstance(denied, InvalidRequest)
    assert isinstance(refused(reference, "manifest for a:1 not found: manifest unknown"), NotFound)
    assert isinstance(refused(reference, "lookup registry.example: no such host"), Unavailable)
    plain = refused(reference, "http: server gave HTTP response to HTTPS client")
    assert isinstance(plain, Unavailable) and "insecure-registries" in plain.hint


def test_the_empty_image_is_the_same_every_time() -> None:
    assert empty_image("amd64") == empty_image("amd64") != empty_image("arm64")
    with tarfile.open(fileobj=io.BytesIO(empty_image("amd64"))) as archive:
        assert archive.getnames() == ["config.json", "manifest.json", "layer.tar"]
