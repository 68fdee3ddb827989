# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""B081: what an image says, what a request says, and what comes of both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casulo.images import manifest, users
from casulo.images.config import ImageConfig, combine
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Platform

D1, D2 = ("sha256:" + digit * 64 for digit in "12")
AMD64 = Platform("linux", "amd64")


def parsed(**body: Any) -> ImageConfig:
    return ImageConfig.parse(body)


@pytest.mark.parametrize(
    ("entrypoint", "cmd", "asked", "expected"),
    [
        (["/wrap", "--"], ["serve", "all of it"], None, ("/wrap", "--", "serve", "all of it")),
        (["/wrap"], None, None, ("/wrap",)),
        (None, ["/bin/sh", "-c", "echo $HOME"], None, ("/bin/sh", "-c", "echo $HOME")),
        (["/wrap"], ["serve"], ["sleep", "1"], ("sleep", "1")),
        ("bare", "words here", None, ("bare", "words here")),
        (["a  b", ""], [], None, ("a  b", "")),
    ],
)
def test_b081_a_requests_entrypoint_replaces_both(
    entrypoint: object, cmd: object, asked: list[str] | None, expected: tuple[str, ...]
) -> None:
    config = parsed(Entrypoint=entrypoint, Cmd=cmd)
    assert combine(config, entrypoint=asked).arguments == expected


def test_b081_nothing_to_start_is_refused() -> None:
    with pytest.raises(InvalidRequest) as failure:
        combine(parsed())
    assert failure.value.code == Code.INVALID_ENTRYPOINT


def test_b081_environment_and_folder() -> None:
    config = parsed(Env=["A=1", "SPACED=a b=c", "EMPTY=", "NOISE"], WorkingDir="srv/../app/", Cmd=["x"])
    process = combine(config, env={"A": "2", "B": "3"})
    assert process.env == {"A": "2", "SPACED": "a b=c", "EMPTY": "", "B": "3"}
    assert process.cwd == "/app"
    assert combine(config, cwd="/tmp").cwd == "/tmp"
    assert combine(parsed(Cmd=["x"])).cwd == "/"


def test_everything_else_is_kept_as_data_and_written_back() -> None:
    config = parsed(
        User="app:web",
        Volumes={"/data": {}, "/cache": {}},
        ExposedPorts={"80/tcp": {}},
        StopSignal="SIGQUIT",
        Cmd=["x"],
        Env=["A=1"],
    )
    assert (config.user, config.volumes, config.exposed_ports) == (
        "app:web",
        ("/cache", "/data"),
        ("80/tcp",),
    )
    assert config.stop_signal == "SIGQUIT"
    assert ImageConfig.parse(config.as_json()) == config


@pytest.mark.parametrize(
    "body", [{"Cmd": [1]}, {"Cmd": {"a": 1}}, {"User": 5}, {"Env": ["A=\0"]}, {"Volumes": ["/a"]}]
)
def test_a_wrong_configuration_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as failure:
        ImageConfig.parse(body)
    assert failure.value.code == Code.IMAGE_INVALID


PASSWD = "root:x:0:0:root:/root:/bin/sh\n#c\nbad line\napp:x:1000:1001::/home/app:/bin/sh\n77:x:5:5::/five:\n"
GROUP = "root:x:0:\nweb:x:80:app,other\napp:x:1001:\nmore:x:90:app\n"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", (0, 0, (), "/root")),
        ("root", (0, 0, (), "/root")),
        ("app", (1000, 1001, (80, 90), "/home/app")),
        ("1000", (1000, 1001, (80, 90), "/home/app")),
        ("app:web", (1000, 80, (), "/home/app")),
        ("app:7", (1000, 7, (), "/home/app")),
        ("4000", (4000, 0, (), "/")),
        ("4000:5000", (4000, 5000, (), "/")),
        ("77", (5, 5, (), "/five")),
    ],
)
def test_a_user_is_found_as_engines_find_it(wanted: str, expected: tuple[object, ...]) -> None:
    found = users.resolve(wanted, PASSWD, GROUP)
    assert (found.uid, found.gid, found.groups, found.home) == expected


def test_a_number_needs_no_files_and_a_name_does() -> None:
    assert users.resolve("12:34", "", "").uid == 12
    assert users.resolve("", "", "").home == "/root"
    for wanted in ("nobody", "0:nogroup", "-1", "99999999999", "1e3"):
        with pytest.raises(InvalidRequest, match="not in the image's"):
            users.resolve(wanted, "", "")


def index(*platforms: str) -> manifest.Index:
    return manifest.Index(tuple(manifest.Descriptor(D1, n, "", p) for n, p in enumerate(platforms)))


def test_b083_the_platform_is_chosen_or_both_are_named() -> None:
    assert manifest.choose(index("linux/arm64/v8", "linux/amd64"), AMD64, "x").platform == "linux/amd64"
    assert manifest.choose(index("linux/amd64/v3", "linux/amd64"), AMD64, "x").platform == "linux/amd64"
    arm = Platform("linux", "arm64")
    assert manifest.choose(index("linux/arm64/v8"), arm, "x").platform == "linux/arm64/v8"
    assert manifest.choose(index(""), AMD64, "x").size == 0
    with pytest.raises(Unsupported) as failure:
        manifest.choose(index("linux/arm64", "windows/amd64", "unknown/unknown"), AMD64, "app:1")
    assert failure.value.message == "image app:1 is for linux/arm64, windows/amd64, and linux/amd64 is needed"


def raw(**changes: Any) -> bytes:
    body = {"schemaVersion": 2, "config": {"digest": D1, "size": 2}, "layers": [{"digest": D2, "size": 3}]}
    return json.dumps({**body, **changes}).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no json", "no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "nested|no JSON"),
        (raw(schemaVersion=1), "obsolete"),
        (raw(layers=None), "no layers"),
        (raw(config={"digest": D1, "size": 1, "mediaType": "application/vnd.helm+json"}), "artifact"),
        (raw(config={"digest": "sha256:../../etc/passwd", "size": 1}), "no SHA-256"),
        (raw(config={"digest": "sha512:" + "a" * 128, "size": 1}), "no SHA-256"),
        (raw(layers=[{"digest": D1, "size": -1}]), "wrong size"),
        (raw(layers=[{"digest": D1, "size": True}]), "wrong size"),
        (raw(layers=[{"digest": D1, "size": 1, "urls": ["http://x"]}]), "outside the registry"),
        (raw(layers=[{"digest": D1, "size": 1, "mediaType": "a+encrypted"}]), "encrypted"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_explained(content: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        manifest.parse(content)


@pytest.mark.parametrize(
    "rootfs", [None, {}, {"diff_ids": [D1, D2]}, {"diff_ids": ["latest"]}, {"diff_ids": "sha256"}]
)
def test_layers_and_configuration_must_agree(rootfs: object) -> None:
    outer = manifest.parse(raw())
    assert isinstance(outer, manifest.Manifest)
    with pytest.raises(InvalidRequest):
        manifest.parse_configuration(json.dumps({"rootfs": rootfs}).encode(), outer)


def test_an_image_made_here_reads_back() -> None:
    config = parsed(Cmd=["x"], Env=["A=1"])
    outer_raw, inner_raw = manifest.composed(config, AMD64, [(D1, 5), (D2, 6)])
    outer = manifest.parse(outer_raw)
    assert isinstance(outer, manifest.Manifest)
    inner = manifest.parse_configuration(inner_raw, outer)
    assert (inner.platform, inner.diff_ids, inner.config) == ("linux/amd64", (D1, D2), config)
    assert outer.config.digest == manifest.digest_of(inner_raw)
