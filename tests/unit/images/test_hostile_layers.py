# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Archives written to harm the host: refused by name, or harmless, and nothing outside is touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from casulo.images.ids import Ids
from casulo.images.unpack import Budget
from casulo.model.errors import Code, InvalidRequest, Unsupported
from support.images import (
    BLOCK_DEVICE,
    CHARACTER,
    FIFO,
    archive,
    extension,
    folder,
    hard_link,
    link,
    member,
)

from .conftest import Unpack

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")


def untouched(root: Path) -> bool:
    beside = root.parent
    return (
        sorted(os.listdir(beside)) == ["outside", "root"]
        and os.listdir(beside / "outside") == ["secret"]
        and (beside / "outside/secret").read_text() == "untouched"
    )


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/../evil", "a/..", "..", "a/../b", "./../outside/secret"]
)
def test_names_that_climb_are_refused(root: Path, unpacked: Unpack, name: str) -> None:
    with pytest.raises(InvalidRequest, match="points out of the image") as failure:
        unpacked(archive(folder("a"), member(name, b"x")))
    assert failure.value.code == Code.IMAGE_INVALID and name in failure.value.message
    assert untouched(root)


def test_a_climbing_name_in_a_pax_header_is_refused(root: Path, unpacked: Unpack) -> None:
    with pytest.raises(InvalidRequest, match="points out"):
        unpacked(archive(member("harmless", b"x", pax={"path": "../evil"})))
    assert untouched(root)


def test_an_absolute_name_is_below_the_images_root(root: Path, unpacked: Unpack) -> None:
    place = root.parent / "outside" / "secret"
    unpacked(archive(member(str(place), b"inside")))
    assert (root / str(place).lstrip("/")).read_text() == "inside"
    assert untouched(root)


@pytest.mark.parametrize("target", ["OUTSIDE", "../outside", "../../../../../../../..OUTSIDE"])
def test_a_link_does_not_lead_out(root: Path, unpacked: Unpack, target: str) -> None:
    outside = str(root.parent / "outside")
    content = archive(link("way", target.replace("OUTSIDE", outside)), member("way/secret", b"overwritten"))
    with pytest.raises(InvalidRequest):  # what it points to does not exist in the layer
        unpacked(content)
    assert untouched(root)


def test_a_link_to_the_hosts_root_is_one_to_the_images(root: Path, unpacked: Unpack) -> None:
    outside = str(root.parent / "outside")
    unpacked(archive(folder(outside), link("way", outside), member("way/secret", b"overwritten")))
    assert (root / outside.lstrip("/") / "secret").read_text() == "overwritten"
    assert untouched(root)


def test_a_file_does_not_write_through_a_link_of_its_name(root: Path, unpacked: Unpack) -> None:
    secret = str(root.parent / "outside/secret")
    unpacked(archive(link("f", secret), member("f", b"new")))
    assert (root / "f").read_text() == "new" and not (root / "f").is_symlink()
    assert untouched(root)


def test_attributes_of_a_folder_do_not_follow_a_link(root: Path, unpacked: Unpack) -> None:
    outside = root.parent / "outside"
    before = outside.stat().st_mode
    unpacked(archive(folder("d", mode=0o777), link("d", str(outside))))
    assert (root / "d").is_symlink() and outside.stat().st_mode == before


def test_a_folder_replaced_by_a_link_is_not_written_into(root: Path, unpacked: Unpack) -> None:
    outside = str(root.parent / "outside")
    content = archive(folder("d"), member("d/a", b"1"), link("d", outside), member("d/secret", b"evil"))
    with pytest.raises(InvalidRequest):
        unpacked(content)
    assert untouched(root)


@pytest.mark.parametrize("target", ["OUT/secret", "../outside/secret", "way/secret", "absent", "d"])
def test_hard_links_stay_within_the_layer(root: Path, unpacked: Unpack, target: str) -> None:
    outside = str(root.parent / "outside")
    content = archive(folder("d"), link("way", outside), hard_link("h", target.replace("OUT", outside)))
    with pytest.raises(InvalidRequest, match=r"no file of this layer|points out of the image"):
        unpacked(content)
    assert untouched(root)


def test_a_hard_link_to_a_link_does_not_follow_it(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(link("way", str(root.parent / "outside/secret")), hard_link("h", "way")))
    assert (root / "h").is_symlink()


def test_a_hard_link_to_itself_keeps_the_file(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(member("f", b"kept"), hard_link("./f", "f")))
    assert (root / "f").read_text() == "kept"


def test_a_loop_of_links_ends(root: Path, unpacked: Unpack) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(archive(link("a", "b"), link("b", "a"), member("a/x", b"1")))


@pytest.mark.parametrize("name", ["/proc/self/root", "/proc/self/fd/3"])
def test_magic_links_are_none_here(root: Path, unpacked: Unpack, name: str) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(archive(link("way", name), member("way/evil", b"1")))
    assert untouched(root)


def test_device_nodes_are_never_made(root: Path, unpacked: Unpack) -> None:
    nodes = [
        member("dev/sda", kind=BLOCK_DEVICE),
        member("dev/null", kind=CHARACTER),
        member("zero", kind=CHARACTER),
    ]
    tally = unpacked(archive(*nodes, member("f", b"1")))
    assert tally.left_out == {"device nodes": 3}
    assert os.listdir(root) == ["f"]


def test_a_device_in_the_form_of_a_whiteout_hides_nothing(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(member("etc", kind=CHARACTER)))
    assert os.listdir(root) == []


def test_a_pipe_is_made_and_not_opened(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(member("p", kind=FIFO, mode=0o622)))
    found = (root / "p").stat()
    assert stat.S_ISFIFO(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o622


@as_root
def test_setuid_bits_are_kept_and_survive_the_change_of_owner(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(member("su", b"x", mode=0o6755, uid=0, gid=12)), Ids(700_000))
    found = (root / "su").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (700_000, 700_012, 0o6755)


@as_root
def test_attributes_that_kernels_obey_are_left_out(root: Path, unpacked: Unpack) -> None:
    records = {
        "SCHILY.xattr.trusted.overlay.redirect": "/etc",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.security.capability": b"\x01\x00\x00\x02\xff\xff\xff\xff",
        "SCHILY.xattr.security.selinux": "x",
        "SCHILY.xattr.system.posix_acl_access": b"\x02\x00\x00\x00",
        "SCHILY.xattr.user.colour": "blue",
    }
    tally = unpacked(archive(folder("d", pax=records), member("f", b"x", pax=records)))
    assert tally.left_out == {"attributes": 10, "file capabilities": 2}
    for name in ("d", "f"):
        assert os.listxattr(root / name) == ["user.colour"]
        assert os.getxattr(root / name, "user.colour") == b"blue"


@as_root
@pytest.mark.parametrize("owner", [{"uid": 65536}, {"gid": 70000}, {"pax": {"uid": "4294967294"}}])
def test_ids_without_a_place_in_the_namespace_are_named(
    root: Path, unpacked: Unpack, owner: dict[str, int]
) -> None:
    with pytest.raises(Unsupported, match="'etc/shadow' belongs to") as failure:
        unpacked(archive(member("etc/shadow", b"x", **owner)), Ids(1_000_000))  # type: ignore[arg-type]
    assert failure.value.code == Code.IMAGE_UNSUPPORTED


@as_root
@pytest.mark.parametrize("uid", [2**32 - 1, 2**32, 2**50])
def test_no_id_is_higher_than_the_kernels(root: Path, unpacked: Unpack, uid: int) -> None:
    with pytest.raises(Unsupported, match="'f' belongs to"):
        unpacked(archive(member("f", b"x", uid=uid)))


@pytest.mark.parametrize("mtime", [2**62, 2**40, 0])
def test_any_time_is_taken_or_cut_by_the_kernel(root: Path, unpacked: Unpack, mtime: int) -> None:
    unpacked(archive(member("f", b"x", mtime=mtime), folder("d", mtime=mtime), link("l", "f", mtime=mtime)))
    assert sorted(os.listdir(root)) == ["d", "f", "l"]


@as_root
def test_high_ids_are_fine_without_a_namespace(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(member("f", b"x", uid=1_234_567)))
    assert (root / "f").stat().st_uid == 1_234_567


def test_everything_belongs_to_the_servers_user_in_single_user_mode(root: Path, unpacked: Unpack) -> None:
    unpacked(archive(folder("d", mode=0o500, uid=70000), member("d/f", b"x", uid=99, gid=99)), Ids(None))
    assert (root / "d/f").stat().st_uid == os.geteuid()
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o700  # else it could not be filled, nor removed


def test_an_archive_that_unpacks_to_too_much_is_stopped(root: Path, unpacked: Unpack) -> None:
    with pytest.raises(InvalidRequest, match="more than 1000 bytes"):
        unpacked(archive(member("a", b"x" * 900), member("b", b"x" * 200)), budget=Budget(1000))
    with pytest.raises(InvalidRequest, match="more than 3 members"):
        unpacked(archive(*(member(f"f{n}", b"") for n in range(5))), budget=Budget(1000, 3))


def test_one_path_takes_many_shapes(root: Path, unpacked: Unpack) -> None:
    """Folder, file, link and folder again: the last one is there, and nothing of the others."""
    unpacked(
        archive(
            folder("x"),
            folder("x/y"),
            member("x/y/z", b"1"),
            member("x", b"file"),
            link("x", "/nowhere"),
            folder("x", mode=0o711),
            member("x/last", b"2"),
        )
    )
    assert os.listdir(root / "x") == ["last"]
    assert stat.S_IMODE((root / "x").stat().st_mode) == 0o711


def test_a_file_is_no_folder(root: Path, unpacked: Unpack) -> None:
    with pytest.raises(InvalidRequest, match="'f/x': not a directory"):
        unpacked(archive(member("f", b"1"), member("f/x", b"2")))


@pytest.mark.parametrize("name", ["n" * 256, "d/" * 2100 + "f"])
def test_names_longer_than_the_kernel_takes_are_refused(root: Path, unpacked: Unpack, name: str) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(archive(member(name, b"1")))


@pytest.mark.parametrize("name", [".", "./", "/", ""])
def test_the_root_can_only_be_a_folder(root: Path, unpacked: Unpack, name: str) -> None:
    with pytest.raises(InvalidRequest, match="root must be a directory"):
        unpacked(archive(member(name, b"1") if name != "./" and name != "/" else link(name, "x")))


def test_names_are_bytes(root: Path, unpacked: Unpack) -> None:
    names = [b"\xff\xfe", b"line\nbreak", b"-rf", b" ", "höhle".encode()]
    unpacked(archive(*(member(name, b"1") for name in names)))
    assert sorted(os.listdir(os.fsencode(root))) == sorted(names)


def test_a_nul_byte_in_a_name_is_refused(root: Path, unpacked: Unpack) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        unpacked(archive(member("f", b"", pax={"path": b"a\0b"})))


def test_a_global_header_presets_no_attributes(root: Path, unpacked: Unpack) -> None:
    preset = extension({"SCHILY.xattr.user.x": b"1", "uid": b"0"}, b"g")
    unpacked(archive(preset, member("f", b"1")))
    assert os.listxattr(root / "f") == []
