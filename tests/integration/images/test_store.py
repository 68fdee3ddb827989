# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The image store as a whole, offline: layouts, archives, imports, other ids, removal, broken pulls."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from casulo.images.config import ImageConfig
from casulo.images.ids import PLAIN, Ids
from casulo.images.settings import ImagesSettings
from casulo.images.store import ImageStore
from casulo.model.errors import CasuloError, Code, Conflict, InvalidRequest, NotFound, Unsupported
from support.images import ImageParts, LayoutWriter, archive, folder, link, member

from .conftest import MINE, unpacked

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and mounts are root's")
BASE = archive(
    folder("etc"),
    member("etc/passwd", b"app:x:7:8::/home/app:/bin/sh\n"),
    member("bin/tool", b"t", mode=0o755),
)


async def test_an_image_is_what_its_configuration_says(store: ImageStore, layout: LayoutWriter) -> None:
    layout.add(
        "one",
        ImageParts(
            [BASE], {"Entrypoint": ["/bin/tool"], "Env": ["A=b c"], "WorkingDir": "/w", "User": "app"}
        ),
    )
    image = await store.pull(layout.reference("one"))
    assert (image.config.entrypoint, image.config.env, image.config.workdir) == (
        ("/bin/tool",),
        {"A": "b c"},
        "/w",
    )
    user = image.user()
    assert (user.uid, user.gid, user.home) == (7, 8, "/home/app")
    assert image.user("9:9").uid == 9


async def test_an_image_of_nothing_can_be_mounted(store: ImageStore, layout: LayoutWriter) -> None:
    layout.add("empty", ImageParts([]))
    image = await store.pull(layout.reference("empty"))
    assert len(image.layers) == 1 and os.listdir(image.layers[0]) == []
    assert image.user().uid == 0


async def test_a_layer_used_twice_is_unpacked_once(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    layout.add("twice", ImageParts([BASE, BASE]))
    layout.add("other", ImageParts([BASE], {"Cmd": ["other"]}))
    image = await store.pull(layout.reference("twice"))
    other = await store.pull(layout.reference("other"))
    assert image.layers == (other.layers[0],) * 2
    assert len(unpacked(tmp_path / "images")) == 1


@as_root
async def test_the_same_image_for_other_ids_needs_no_source(store: ImageStore, layout: LayoutWriter) -> None:
    name = layout.reference("one")
    layout.add("one", ImageParts([BASE, archive(member(".wh.bin"), folder("x", uid=3))]))
    plain = await store.pull(name)
    (layout.folder / "index.json").unlink()
    shifted = await store.resolve(name, ids=Ids(300_000))
    assert (shifted.layers[0] / "bin/tool").stat().st_uid == 300_000
    assert (shifted.layers[1] / "x").stat().st_uid == 300_003
    assert stat.S_ISCHR((shifted.layers[1] / "bin").lstat().st_mode)
    assert (plain.layers[0] / "bin/tool").stat().st_uid == 0


async def test_requests_may_not_name_files_of_the_server(tmp_path: Path, layout: LayoutWriter) -> None:
    layout.add("one", ImageParts([BASE]))
    closed = ImageStore(tmp_path / "a", ImagesSettings(), MINE)
    await closed.open()
    for name in (layout.reference("one"), "docker-archive:/etc/shadow", "docker-daemon:app"):
        with pytest.raises(Unsupported, match="requests may not name this source"):
            await closed.resolve(name)
    await closed.pull(layout.reference("one"))  # the administrator may
    assert await closed.resolve(layout.reference("one"))
    opened = ImageStore(tmp_path / "b", ImagesSettings(sources=(tmp_path,)), MINE)
    await opened.open()
    assert await opened.resolve(layout.reference("one"))
    (tmp_path / "way-out").symlink_to("/")
    with pytest.raises(Unsupported):
        await opened.resolve(f"oci:{tmp_path}/way-out{layout.folder}/../../../..")


async def test_a_saved_docker_image_is_read(store: ImageStore, tmp_path: Path) -> None:
    """The form of `docker save`: a list, a configuration, and layers as archives."""
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["saved"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(BASE).hexdigest()}"]},
        }
    ).encode()
    listing = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l/layer.tar"]}]).encode()
    saved = tmp_path / "saved.tar"
    with tarfile.open(saved, "w") as out:
        for name, content in (("c.json", config), ("l/layer.tar", BASE), ("manifest.json", listing)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    for name in (f"docker-archive:{saved}", f"docker-archive:{saved}:app:1"):
        image = await store.pull(name)
        assert image.config.cmd == ("saved",) and (image.layers[0] / "bin/tool").is_file()
    with pytest.raises(CasuloError):
        await store.pull(f"docker-archive:{saved}:other:1")


async def test_the_wrong_platform_of_a_single_image_is_refused(
    store: ImageStore, layout: LayoutWriter
) -> None:
    layout.add("arm", ImageParts([BASE], architecture="s390x"))
    with pytest.raises(Unsupported, match="is for linux/s390x, and linux/"):
        await store.pull(layout.reference("arm"))


@pytest.mark.parametrize(
    "content",
    [
        archive(member("../evil")),
        archive(member("a", b"x"))[:600],
        gzip.compress(BASE)[:-9],
        b"",
        b"text" * 200,
    ],
)
async def test_b080_a_bad_layer_leaves_nothing(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path, content: bytes
) -> None:
    """The good layer below it stays for the next try; the image does not exist."""
    layout.add("bad", ImageParts([BASE, content], compress=False))
    if content == b"":
        assert (await store.pull(layout.reference("bad"))).digest  # an empty archive is an empty layer
        return
    with pytest.raises(InvalidRequest) as failure:
        await store.pull(layout.reference("bad"))
    assert failure.value.code == Code.IMAGE_INVALID
    assert await store.list() == []
    assert not (tmp_path / "evil").exists()


async def test_a_layer_that_is_not_what_the_configuration_says_is_refused(
    store: ImageStore, layout: LayoutWriter
) -> None:
    digest = layout.add("one", ImageParts([BASE], compress=False))
    manifest = layout.folder / "blobs/sha256" / digest.removeprefix("sha256:")
    body = json.loads(manifest.read_bytes())
    body["layers"] = [layout.blob(archive(member("bin/tool", b"another")))]
    described = layout.json(body, "application/vnd.oci.image.manifest.v1+json")
    index = {
        "schemaVersion": 2,
        "manifests": [{**described, "annotations": {"org.opencontainers.image.ref.name": "x"}}],
    }
    (layout.folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequest, match="not what was promised"):
        await store.pull(layout.reference("x"))


async def test_too_many_layers_are_refused_before_any_is_unpacked(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    layout.add("deep", ImageParts([archive(member(f"f{n}")) for n in range(111)]))
    with pytest.raises(Unsupported, match="111 layers, and 110 fit"):
        await store.pull(layout.reference("deep"))
    assert unpacked(tmp_path / "images") == []


@as_root
async def test_the_most_layers_still_mount(layout: LayoutWriter, tmp_path: Path) -> None:
    """With paths relative to a sandbox's folder, as the local runtime writes them."""
    data = tmp_path / "data"
    store = ImageStore(data / "images", ImagesSettings(), PLAIN)
    await store.open()
    layout.add("deep", ImageParts([archive(member(f"f{n}", b"1")) for n in range(110)]))
    image = await store.pull(layout.reference("deep"))
    sandbox = data / "sandboxes" / "0123456789"
    for name in ("upper", "work", "merged"):
        (sandbox / name).mkdir(parents=True)
    lower = ":".join(os.path.relpath(layer, sandbox) for layer in reversed(image.layers))
    options = f"lowerdir={lower},upperdir=upper,workdir=work"
    script = f"mount -t overlay overlay -o {options} merged && ls merged | wc -l"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=sandbox, capture_output=True, text=True
    )
    assert done.stdout.strip() == "110", done.stderr
    assert len(lower) < 4000


async def test_the_image_may_not_unpack_to_more_than_the_limit(tmp_path: Path, layout: LayoutWriter) -> None:
    bomb = archive(member("zeros", bytes(3 << 20)))
    layout.add("bomb", ImageParts([bomb]))
    small = ImageStore(tmp_path / "images", ImagesSettings(max_unpacked="2Mi"), MINE)
    await small.open()
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        await small.pull(layout.reference("bomb"))
    assert unpacked(tmp_path / "images") == []


@pytest.mark.parametrize("form", ["plain", "gzip", "folder"])
async def test_a_root_file_system_is_imported(store: ImageStore, tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    if form == "folder":
        (source / "bin").mkdir(parents=True)
        (source / "bin/tool").write_text("t")
        (source / "bin/tool").chmod(0o755)
    else:
        source.write_bytes(BASE if form == "plain" else gzip.compress(BASE))
    config = ImageConfig(entrypoint=("/bin/tool",), env={"A": "1"}, workdir="/bin")
    image = await store.import_image(source, "mine", config)
    assert image.config == config and image.name == "mine:latest"
    assert (image.layers[0] / "bin/tool").read_text() == "t"
    assert await store.resolve("mine") == image
    assert [summary.names for summary in await store.list()] == [("mine:latest",)]


async def test_what_cannot_be_imported_is_explained(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("this is no archive " * 100)
    for source, name, why in (
        ("absent", "a", "No such file"), ("empty", "a", "holds no files"), ("text", "a", "damaged"),
        ("text", "oci:/x", "no name to give"), ("text", "Upper", "lower case"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=why):
            await store.import_image(tmp_path / source, name)
    assert await store.list() == []


async def test_names_and_images_go_when_nobody_uses_them(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    for tag in ("one", "two"):
        layout.add(tag, ImageParts([BASE, archive(member(tag, b"1"))]))
    one = await store.pull(layout.reference("one"))
    two = await store.resolve(layout.reference("one"), holder="sandbox-1")
    assert one == two
    with pytest.raises(Conflict, match="in use by sandbox-1") as failure:
        await store.remove(layout.reference("one"))
    assert failure.value.code == Code.IMAGE_IN_USE
    await store.pull(layout.reference("two"))
    gone = await store.prune(unused=True)
    assert gone.names == (layout.reference("two"),) and gone.layers == 1
    await store.release("sandbox-1")
    await store.release("sandbox-1")
    with pytest.raises(Conflict):
        await store.remove(one.digest, in_use=[one.digest])
    assert (await store.prune(in_use=[one.digest], unused=True)).images == ()
    gone = await store.remove(one.digest.removeprefix("sha256:")[:12])
    assert gone.layers == 2 and unpacked(tmp_path / "images") == []
    for name in ("absent", "sha256:" + "0" * 64, "abcdef0"):
        with pytest.raises(NotFound):
            await store.remove(name)


async def test_a_moved_tag_leaves_an_image_that_prune_takes(store: ImageStore, layout: LayoutWriter) -> None:
    layout.add("moving", ImageParts([BASE], {"Cmd": ["old"]}))
    old = await store.pull(layout.reference("moving"))
    (layout.folder / "index.json").unlink()
    layout._tags.clear()
    layout.add("moving", ImageParts([BASE], {"Cmd": ["new"]}))
    new = await store.pull(layout.reference("moving"))
    assert (old.config.cmd, new.config.cmd) == (("old",), ("new",))
    assert {s.digest for s in await store.list()} == {old.digest, new.digest}
    pruned = await store.prune()
    assert pruned.images == (old.digest,) and pruned.layers == 0
    assert await store.local(layout.reference("moving")) == new


async def test_links_in_the_archive_cannot_turn_the_stores_own_files(
    store: ImageStore, layout: LayoutWriter, tmp_path: Path
) -> None:
    layout.add("sly", ImageParts([archive(link("../layer", "/etc/passwd"))]))
    with pytest.raises(InvalidRequest):
        await store.pull(layout.reference("sly"))


async def test_the_folder_is_closed_to_other_users(store: ImageStore, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "images").stat().st_mode) == 0o700


async def test_a_hundred_thousand_small_files(store: ImageStore, layout: LayoutWriter) -> None:
    layout.add(
        "many", ImageParts([archive(*(member(f"d{n // 500}/{n}", b"%d" % n) for n in range(100_000)))])
    )
    image = await store.pull(layout.reference("many"))
    assert sum(len(files) for _, _, files in os.walk(image.layers[0])) == 100_000
    assert (image.layers[0] / "d123/61999").read_text() == "61999"
    gone = await store.remove(image.digest)
    assert gone.layers == 1 and not image.layers[0].exists()


async def test_a_layer_of_two_gibibytes(store: ImageStore, tmp_path: Path) -> None:
    """Larger than fits into 31 bits, and never in memory at once."""
    size = (2 << 30) + 5
    block = bytes(1 << 20)
    packed = tmp_path / "huge.tar.gz"
    with gzip.open(packed, "wb", 1) as out:
        out.write(member("huge", b"", size=size))
        for _ in range(size // len(block)):
            out.write(block)
        out.write(b"ended" + bytes(-size % 512) + bytes(1024))
    image = await store.import_image(packed, "huge")
    made = image.layers[0] / "huge"
    assert made.stat().st_size == size
    with made.open("rb") as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == b"ended"
    await store.remove("huge")
