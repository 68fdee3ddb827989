# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Building images and the `osb image` commands, as a person at the machine uses them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from casulo.client import Client, Connection, Sandbox
from support.images import ImageParts, LayoutWriter, archive, folder, link
from support.images import busybox as busybox_layer
from support.machine import cannot_run

Osb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def osb(tmp_path: Path) -> Osb:
    """`osb` with a data directory of its own."""

    def run(*words: str | Path, text: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        code = "from casulo.cli.main import app; app()"
        command = [sys.executable, "-c", code, *map(str, words)]
        env = {**os.environ, "CASULO_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, timeout=900)
        assert (done.returncode == 0) is ok, done.stderr
        return done

    return run


@pytest.fixture
def base(tmp_path: Path) -> str:
    """An image with one program and its links; the name for `osb image pull`."""
    layout = LayoutWriter(tmp_path / "layout")
    content = archive(folder("etc"), link("etc/way-out", "/tmp/outside"))
    layout.add("busybox", ImageParts([busybox_layer(), content], {"Cmd": ["/bin/sh"], "Env": ["A=1"]}))
    return layout.reference("busybox")


def needs_root() -> None:
    if os.geteuid() != 0:
        cannot_run("building needs root")


def only(osb: Osb) -> dict[str, object]:
    found: list[dict[str, object]] = json.loads(osb("image", "ls", "-o", "json").stdout)
    assert len(found) == 1
    return found[0]


def test_images_come_and_go(osb: Osb, base: str) -> None:
    assert osb("image", "ls").stdout.split() == ["NAME", "DIGEST", "PLATFORM", "LAYERS", "SIZE"]
    pulled = json.loads(osb("image", "pull", base, "-o", "json").stdout)
    assert pulled["name"] == base and pulled["layers"] == 2
    assert only(osb)["digest"] == pulled["digest"]
    assert base in osb("image", "ls").stdout
    assert "0 layers" in osb("image", "prune").stdout
    removed = osb("image", "rm", pulled["digest"][7:15]).stdout
    assert f"removed {base}" in removed and "2 layers" in removed
    assert json.loads(osb("image", "ls", "-o", "json").stdout) == []


def test_errors_are_sentences(osb: Osb, tmp_path: Path) -> None:
    for words, why in (
        (("rm", "nothing"), "no image here"),
        (("pull", f"oci:{tmp_path}/absent:x"), "does not exist"),
        (("pull", "Upper"), "lower case"),
        (("pull", "x", "-u", "me"), "belong together"),
        (("import", tmp_path / "absent", "x"), "No such file"),
        (("import", tmp_path, "host"), "machine's own image"),
        (("build", tmp_path / "absent.toml"), "cannot read"),
    ):
        done = osb("image", *words, ok=False)
        assert why in done.stderr and "Traceback" not in done.stderr


def test_a_folder_is_imported_with_its_configuration(osb: Osb, tmp_path: Path) -> None:
    (tmp_path / "tree/bin").mkdir(parents=True)
    (tmp_path / "tree/bin/tool").write_text("x")
    options = ("--entrypoint", "/bin/tool", "--entrypoint", "a b", "-e", "A=b c", "-w", "/bin", "--user", "7")
    osb("image", "import", tmp_path / "tree", "mine:2", *options)
    assert only(osb)["names"] == ["mine:2"]
    (stored,) = (tmp_path / "home/images/manifests").iterdir()
    config = json.loads(json.loads(stored.read_text())["configuration"])["config"]
    assert config == {"Entrypoint": ["/bin/tool", "a b"], "Env": ["A=b c"], "WorkingDir": "/bin", "User": "7"}


def test_an_image_is_built_on_another_without_any_network(osb: Osb, base: str, tmp_path: Path) -> None:
    needs_root()
    (tmp_path / "tool.sh").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "recipe.toml").write_text(
        f'name = "tool:1"\nbase = "{base}"\nentrypoint = ["/bin/tool"]\n[env]\nB = "2"\n'
        '[[files]]\npath = "/bin/tool"\nsource = "tool.sh"\nmode = "0755"\n'
        '[[files]]\npath = "/etc/new/deep/file"\ncontent = "text"\n'
        '[[files]]\npath = "/etc/way-out"\ncontent = "inside"\n'
    )
    built = json.loads(osb("image", "build", tmp_path / "recipe.toml", "-o", "json").stdout)
    assert built["name"] == "tool:1" and built["layers"] == 3
    assert not Path("/tmp/outside").exists()
    top = next(path for path in (tmp_path / "home/images/l").glob("*/d") if (path / "bin/tool").exists())
    assert (top / "bin/tool").stat().st_mode & 0o7777 == 0o755
    assert (top / "etc/new/deep/file").read_text() == "text"
    assert (top / "etc/way-out").read_text() == "inside" and not (top / "etc/way-out").is_symlink()
    assert not (top / "bin/busybox").exists()
    assert os.listdir(tmp_path / "home/images/tmp") == []


def test_files_and_packages_come_on_top_of_this_machines_programs(new_server, tmp_path: Path) -> None:
    needs_root()
    server = new_server("local")
    (tmp_path / "one.toml").write_text(
        'name = "ours:1"\nbase = "host"\nworkdir = "/srv"\n[env]\nGREETING = "hello"\n'
        '[[files]]\npath = "/srv/tool"\ncontent = "#!/bin/sh\\necho $GREETING"\nmode = "0755"\n'
    )
    (tmp_path / "two.toml").write_text(
        'name = "ours:2"\nbase = "ours:1"\n[[files]]\npath = "/srv/other"\ncontent = "2"\n'
    )
    (tmp_path / "wrong.toml").write_text(
        'name = "ours:3"\nbase = "host"\n[[files]]\npath = "/usr/bin/ls"\ncontent = "2"\n'
    )
    config = ["--config", str(server.data_dir / "test.toml")]
    build = [sys.executable, "-m", "casulo.cli", "image", *config, "build"]
    for recipe, code in (("one", 0), ("two", 0), ("wrong", 1)):
        done = subprocess.run([*build, str(tmp_path / f"{recipe}.toml")], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert "/usr/bin/ls cannot be written" in done.stderr
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create("ours:2", client=client) as box,
    ):
        assert (
            box.commands.run("./tool && cat other && pwd && python3 -V")
            .check()
            .stdout.startswith("hello\n2/srv\nPy")
        )
        assert not box.commands.run("touch /usr/x").ok
        snapshot = box.snapshot("ours")
        with Sandbox.create(snapshot=snapshot, client=client) as again:
            assert again.commands.run("/srv/tool").check().stdout == "hello\n"


def test_a_failing_step_is_shown_and_leaves_nothing(osb: Osb, base: str, tmp_path: Path) -> None:
    needs_root()
    (tmp_path / "recipe.toml").write_text(f'name = "x"\nbase = "{base}"\n[packages]\npip = ["six"]\n')
    done = osb("image", "build", tmp_path / "recipe.toml", ok=False)
    assert "a step of the build failed" in done.stderr and "python3" in done.stderr
    assert [image["names"] for image in json.loads(osb("image", "ls", "-o", "json").stdout)] == [[base]]
    assert os.listdir(tmp_path / "home/images/tmp") == []


@pytest.mark.timeout(1200)  # a busy machine takes minutes to unpack a distribution
def test_a_debian_image_is_built_from_this_machines_sources(osb: Osb, tmp_path: Path) -> None:
    """Needs the machine's package mirror; that is the one thing it is about."""
    needs_root()
    if shutil.which("mmdebstrap") is None:
        cannot_run("mmdebstrap is not installed")
    release = Path("/etc/os-release").read_text()
    if "ID=debian" not in release.splitlines():
        cannot_run("this machine has no Debian sources")
    suite = next(
        line.partition("=")[2] for line in release.splitlines() if line.startswith("VERSION_CODENAME=")
    )
    (tmp_path / "base.toml").write_text(f'name = "deb:1"\nbase = "suite:{suite}"\nentrypoint = ["/bin/sh"]\n')
    (tmp_path / "top.toml").write_text('name = "deb:2"\nbase = "deb:1"\n[packages]\napt = ["tree"]\n')
    osb("image", "build", tmp_path / "base.toml")
    said = osb("image", "build", tmp_path / "top.toml").stderr
    assert "installing with apt: tree" in said
    layers = list((tmp_path / "home/images/l").glob("*/d"))
    top = next(layer for layer in layers if (layer / "usr/bin/tree").exists())
    assert not any((top / name).exists() for name in ("run/casulo-build", "proc", "var/lib/apt/lists/lock"))
    assert any((layer / "usr/bin/apt-get").exists() and not (layer / "dev/null").exists() for layer in layers)
