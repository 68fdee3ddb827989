# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Recipes: what they may say, what is wrong with them, and where Debian's packages come from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from casulo.images import aptsources, recipe
from casulo.images.config import ImageConfig
from casulo.model.errors import InvalidRequest

WHOLE = """
name = "tools:1"
base = "suite:bookworm"
entrypoint = ["/usr/bin/tool"]
cmd = ["serve"]
workdir = "/srv"
user = "app"
[packages]
apt = ["git", "libfoo-dev"]
pip = ["six==1.16.0", "requests[socks]>=2"]
npm = ["@scope/thing@1.2.3"]
[env]
LANG = "C.UTF-8"
[[files]]
path = "/etc/tool.conf"
content = "answer = 42"
[[files]]
path = "/usr/bin/tool"
source = "tool.sh"
mode = "0755"
"""


def parsed(text: str) -> recipe.Recipe:
    return recipe.parse(tomllib.loads(text), Path("/where"))


def test_everything_that_a_recipe_can_say() -> None:
    found = parsed(WHOLE)
    assert (found.name, found.suite, found.entrypoint, found.cmd) == (
        "tools:1",
        "bookworm",
        ("/usr/bin/tool",),
        ("serve",),
    )
    assert found.packages.pip == ("six==1.16.0", "requests[socks]>=2")
    assert [(f.path, f.content, f.source, f.mode) for f in found.files] == [
        ("/etc/tool.conf", "answer = 42", None, 0o644),
        ("/usr/bin/tool", None, Path("/where/tool.sh"), 0o755),
    ]


def test_the_configuration_goes_on_top_of_the_bases() -> None:
    base = ImageConfig(entrypoint=("/a",), cmd=("b",), env={"A": "1", "B": "2"}, workdir="/w", user="u")
    same = parsed('name = "x"\nbase = "y"\n').configure(base)
    assert same == base
    changed = parsed('name = "x"\nbase = "y"\nentrypoint = ["/n"]\nuser = ""\n[env]\nB = "3"\n').configure(
        base
    )
    assert (changed.entrypoint, changed.cmd, changed.user, changed.workdir) == (("/n",), (), "", "/w")
    assert changed.env == {"A": "1", "B": "3"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"suite:bookworm"', '"suite:../x"', "no Debian suite"),
        ("workdir", "wordkir", "unknown key wordkir"),
        ('name = "tools:1"', "", "name is missing"),
        ("apt =", "apk =", "unknown key packages.apk"),
        ('"git"', '"--allow-downgrades"', "no package name"),
        ('"git"', '"git; rm -rf /"', "no package name"),
        ('"six==1.16.0"', '"-r/etc/passwd"', "no package name"),
        ('["git", "libfoo-dev"]', '"git"', "list of texts"),
        ('"C.UTF-8"', "5", "table of texts"),
        ('"/etc/tool.conf"', '"etc/tool.conf"', "no absolute path"),
        ('"/etc/tool.conf"', '"/etc/../../tool.conf"', "no absolute path"),
        ('source = "tool.sh"', "", "either content or source"),
        ('"0755"', '"rwx"', 'like "0755"'),
        ("user", "usr", "unknown key usr"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, why: str) -> None:
    assert old in WHOLE
    with pytest.raises(InvalidRequest) as failure:
        parsed(WHOLE.replace(old, new, 1))
    assert why in failure.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("name = ")
    for name, why in (("absent.toml", "cannot read"), ("bad.toml", "not valid TOML")):
        with pytest.raises(InvalidRequest, match=why):
            recipe.load(tmp_path / name)


SOURCES = """\
# the machine's own
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://other.example/
Suites: nodistro
Components: main
Enabled: no
"""


def test_packages_come_from_where_this_machine_gets_its_own(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    assert aptsources.for_suite("bookworm", tmp_path) == ""
    (tmp_path / "sources.list.d/debian.sources").write_text(SOURCES)
    signed = "[signed-by=/usr/share/keyrings/debian.gpg]"
    assert aptsources.for_suite("bookworm", tmp_path).splitlines() == [
        f"deb {signed} http://mirror.example/debian bookworm main contrib",
        f"deb {signed} http://mirror.example/debian bookworm-updates main contrib",
        "deb http://mirror.example/security bookworm-security main",
    ]
    assert (
        aptsources.for_suite("trixie", tmp_path)
        == f"deb {signed} http://mirror.example/debian trixie main contrib\n"
    )


def test_the_old_form_of_sources_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://x bookworm main\ndeb [arch=amd64 trusted=yes] http://m/d bookworm main  # why\n"
        "deb-src http://m/d bookworm main\ndeb http://m/s bookworm/updates main\n"
    )
    assert aptsources.for_suite("bookworm", tmp_path).splitlines() == [
        "deb [arch=amd64 trusted=yes] http://m/d bookworm main",
        "deb http://m/s bookworm/updates main",
    ]
