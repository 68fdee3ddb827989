# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Layers that an ordinary user unpacks: stacked by that user's own mount, and removed again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.images import archive, folder, member
from support.machine import cannot_run

UID = 61235
LOWER = archive(
    folder("etc"),
    member("etc/kept", b"1"),
    member("etc/gone", b"1"),
    folder("emptied"),
    member("emptied/old", b"1"),
    folder("closed", mode=0o500, uid=70000),
    member("closed/file", b"1", mode=0, uid=99),
    folder("closed/deep", mode=0),
)
UPPER = archive(member("etc/.wh.gone"), member("emptied/.wh..wh..opq"), member("emptied/new", b"2"))

_AS_USER = """
import io, json, os, subprocess, sys
from pathlib import Path
from casulo.images.ids import Ids
from casulo.images.layers import unpack
from casulo.images.removal import remove_tree
from casulo.images.unpack import Budget
import bz2, lzma, zlib, encodings.utf_8

uid, place = int(sys.argv[1]), Path(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
layers = [unpack(open(f, "rb"), place, Ids(None), Budget()).folder / "d" for f in sys.argv[3:]]
(place / "merged").mkdir()
options = f"lowerdir={layers[1]}:{layers[0]},userxattr"
script = 'mount -t overlay overlay -o "$1" "$2" || exit 9; cd "$2"; find . | sort; cat closed/file'
wrapped = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", options]
done = subprocess.run([*wrapped, str(place / "merged")], capture_output=True, text=True)
for layer in layers:
    remove_tree(layer.parent)
print(json.dumps([done.returncode, done.stdout.splitlines(), done.stderr, os.listdir(place)]))
"""


def test_an_ordinary_users_layers_stack_and_go() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        cannot_run("becoming another user needs root and unshare")
    place = Path("/tmp") / f"casulo-rootless-images-{os.getpid()}"
    place.mkdir()
    try:
        os.chown(place, UID, UID)
        files = [place / name for name in ("lower.tar", "upper.tar")]
        for file, content in zip(files, (LOWER, UPPER), strict=True):
            file.write_bytes(content)
        command = [sys.executable, "-c", _AS_USER, str(UID), str(place), *map(str, files)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    finally:
        shutil.rmtree(place)
    code, lines, errors, left = json.loads(told)
    if code == 9:
        cannot_run(f"ordinary users cannot mount here: {errors}")
    shown = [
        ".",
        "./closed",
        "./closed/deep",
        "./closed/file",
        "./emptied",
        "./emptied/new",
        "./etc",
        "./etc/kept",
        "1",
    ]
    assert lines == shown, errors
    assert sorted(left) == ["lower.tar", "merged", "upper.tar"]
