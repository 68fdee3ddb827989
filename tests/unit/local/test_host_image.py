# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The generated tree of the `host` image: what is in it, and above all what is not."""

from __future__ import annotations

import os
from pathlib import Path

from casulo.images import host


def test_tree_has_what_programs_need_and_none_of_the_hosts_secrets(tmp_path: Path) -> None:
    image = host.prepare(tmp_path, None, ("192.0.2.1",))
    assert (image.root / "etc/resolv.conf").read_text() == "nameserver 192.0.2.1\n"
    assert "root:x:0:0" in (image.root / "etc/passwd").read_text()
    assert (image.root / "tmp").stat().st_mode & 0o7777 == 0o1777
    for secret in (
        "etc/shadow",
        "etc/gshadow",
        "etc/sudoers",
        "etc/ssh",
        "etc/ssl/private",
        "etc/machine-id",
    ):
        assert not (image.root / secret).exists()
    for empty in ("root", "home/user", "srv", "mnt", "var/log"):
        assert list((image.root / empty).iterdir()) == []


def test_nothing_unreadable_to_everybody_is_copied(tmp_path: Path) -> None:
    image = host.prepare(tmp_path, None, ())
    for folder, _, files in os.walk(image.root / "etc"):
        for path in (Path(folder) / name for name in files):
            original = Path("/etc") / path.relative_to(image.root / "etc")
            if not path.is_symlink() and original.exists() and not original.is_symlink():
                assert original.stat().st_mode & 0o004, original


def test_same_content_is_built_once_and_other_content_apart(tmp_path: Path) -> None:
    first = host.prepare(tmp_path, None, ("192.0.2.1",))
    again = host.prepare(tmp_path, None, ("192.0.2.1",))
    other = host.prepare(tmp_path, None, ("192.0.2.2",))
    assert first.root == again.root
    assert other.root != first.root
    assert len(list(tmp_path.iterdir())) == 2


def test_usr_is_bound_and_links_into_it_are_kept(tmp_path: Path) -> None:
    image = host.prepare(tmp_path, None, ())
    assert "/usr" in image.binds
    if Path("/bin").is_symlink():
        assert os.readlink(image.root / "bin") == os.readlink("/bin")
        assert "/bin" not in image.binds
