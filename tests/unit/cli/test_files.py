# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb file`: copies are exact, and either whole or not there."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from casulo.client.staging import staged

from .conftest import Osb

SIZES = [0, 1, 17 << 10, 19 << 10, 64 << 10, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 20_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_b021_upload_and_download_of_every_size(osb: Osb, box: str, tmp_path: Path, size: int) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(random.Random(size).randbytes(size))
    remote = f"{tmp_path}/new/place/file"
    osb.text("file", "upload", box, str(source), remote)
    remote_sum = osb.text("command", "run", box, "--", f"sha256sum < {remote}").split()[0]
    assert remote_sum == hashlib.sha256(source.read_bytes()).hexdigest()
    osb.text("file", "download", box, remote, str(back))
    assert back.read_bytes() == source.read_bytes()


def test_pipes_in_and_out(osb: Osb, box: str, tmp_path: Path) -> None:
    data, place = bytes(range(256)) * 1000, str(tmp_path / "x")
    assert osb.run("file", "upload", box, "-", place, stdin=data).returncode == 0
    assert osb.run("file", "download", box, place, "-").stdout == data
    assert osb.run("file", "cat", box, place).stdout == data
    assert osb.run("file", "write", box, place, stdin=b"piped\n").returncode == 0
    assert osb.text("file", "cat", box, place) == "piped\n"


def test_a_failed_download_leaves_the_old_file(osb: Osb, box: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    done = osb.run("file", "download", box, "/no/such/file", str(target))
    assert (done.returncode, target.read_text()) == (1, "old")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["target"]


def test_everything_else(osb: Osb, box: str, tmp_path: Path) -> None:
    top = str(tmp_path / "tree")
    osb.text("file", "mkdir", box, f"{top}/a", f"{top}/b", "--mode", "0750")
    osb.text("file", "write", box, f"{top}/a/one.txt", "-c", "x y x", "--mode", "600")
    listed = json.loads(osb.text("file", "ls", box, top, "--depth", "2", "-o", "json"))
    assert [(Path(e["path"]).name, e["type"], e["mode"]) for e in listed] == [
        ("a", "directory", "0750"),
        ("one.txt", "file", "0600"),
        ("b", "directory", "0750"),
    ]
    replaced = osb.text("file", "replace", box, f"{top}/a/one.txt", "--old", "x", "--new", "z", "-o", "json")
    assert json.loads(replaced)["replaced_count"] == 2
    osb.text("file", "mv", box, f"{top}/a/one.txt", f"{top}/b/two.txt")
    osb.text("file", "chmod", box, f"{top}/b/two.txt", "--mode", "0644")
    info = json.loads(osb.text("file", "info", box, f"{top}/b/two.txt", "-o", "json"))
    assert (info[0]["mode"], info[0]["size"]) == ("0644", 5)
    assert "two.txt" in osb.text("file", "search", box, top, "-p", "*.txt")
    assert osb.text("file", "cat", box, f"{top}/b/two.txt") == "z y z"
    osb.text("file", "rm", box, f"{top}/b/two.txt", f"{top}/nothing")
    osb.text("file", "rmdir", box, top)
    assert osb.run("file", "info", box, top).returncode == 1


def tree(top: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every entry below `top`: its mode and its content."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(top.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(top))] = (path.lstat().st_mode & 0o777, content)
    return found


def test_trees_are_copied_both_ways(osb: Osb, box: str, tmp_path: Path) -> None:
    here, there, back = tmp_path / "here", f"{tmp_path}/there", tmp_path / "back"
    (here / "sub/empty").mkdir(parents=True)
    (here / "big").write_bytes(random.Random(1).randbytes(3_000_000))
    (here / "sub/run.sh").write_text("#!/bin/sh\n")
    (here / "sub/run.sh").chmod(0o755)
    (here / "sub/link").symlink_to("run.sh")
    osb.text("cp", str(here), f"{box}:{there}")
    osb.text("cp", f"{box}:{there}", str(back))
    assert tree(back) == tree(here)
    osb.text("cp", str(here), f"{box}:{there}/")  # into the directory that exists now
    assert osb.text("command", "run", box, "--", f"ls {there}").split() == ["big", "here", "sub"]


def test_single_files_are_copied_both_ways(osb: Osb, box: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100_000)
    osb.text("cp", str(source), f"{box}:{tmp_path}/new/name")
    osb.text("cp", f"{box}:{tmp_path}/new/name", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert osb.run("cp", str(tmp_path / "nothing"), f"{box}:/tmp/x").returncode == 1
    assert osb.run("cp", str(source), str(target)).returncode == 2


def test_what_comes_out_of_a_sandbox_stays_in_its_place(osb: Osb, box: str, tmp_path: Path) -> None:
    """A sandbox is free to hold links that lead anywhere; a copy of it must not follow them out."""
    osb.text("command", "run", box, "--", f"mkdir {tmp_path}/evil; ln -s /etc {tmp_path}/evil/out")
    done = osb.run("cp", f"{box}:{tmp_path}/evil", str(tmp_path / "copy"))
    assert done.returncode == 1
    assert b"refused to unpack" in done.stderr


def test_staged_keeps_the_mode_and_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    target.chmod(0o640)
    with pytest.raises(ZeroDivisionError), staged(target) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    with staged(target) as file:
        file.write(b"new")
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert list(tmp_path.iterdir()) == [target]
