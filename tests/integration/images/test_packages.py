# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Packages of pip and npm on top of this machine's programs, from an index that this test serves itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from casulo.client import Client, Connection, Sandbox
from support.machine import cannot_run
from support.server import Server

NAME = "casulo-stand-in"
WHEEL = "casulo_stand_in-1.0-py3-none-any.whl"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The address of an index with one package of each kind."""
    root = tmp_path / "index"
    handler = functools.partial(Quiet, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        (root / "simple" / NAME).mkdir(parents=True)
        (root / "simple" / NAME / "index.html").write_text(f'<a href="/{WHEEL}">{WHEEL}</a>')
        (root / WHEEL).write_bytes(_wheel())
        (root / "package.tgz").write_bytes(package := _package())
        (root / NAME).write_text(json.dumps(_described(package, f"{address}/package.tgz")))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield address
        server.shutdown()
        thread.join()


def _wheel() -> bytes:
    info = "casulo_stand_in-1.0.dist-info"
    files = {
        "casulo_stand_in.py": "def main():\n    print('from pip')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\npip-says = casulo_stand_in:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def _package() -> bytes:
    described = {"name": NAME, "version": "1.0.0", "bin": {"npm-says": "says.js"}, "main": "says.js"}
    files = {
        "package.json": json.dumps(described),
        "says.js": "#!/usr/bin/env node\nconsole.log('from npm')\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def _described(package: bytes, address: str) -> dict[str, object]:
    digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
    dist = {"tarball": address, "integrity": f"sha512-{digest}"}
    version = {"name": NAME, "version": "1.0.0", "bin": {"npm-says": "says.js"}, "dist": dist}
    return {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


@pytest.mark.parametrize(
    ("manager", "needs", "says"),
    [
        (
            "pip",
            ["/usr/bin/python3", "-m", "pip", "--version"],
            "pip-says; python3 -c 'import casulo_stand_in'",
        ),
        ("npm", ["/usr/bin/npm", "--version"], f"npm-says; node -e 'require(\"{NAME}\")' >/dev/null"),
    ],
    ids=["pip", "npm"],
)
def test_packages_come_on_top_of_this_machines_programs(
    new_server: Callable[..., Server], index: str, tmp_path: Path, manager: str, needs: list[str], says: str
) -> None:
    if os.geteuid() != 0:
        cannot_run("building needs root")
    if not Path(needs[0]).exists() or subprocess.run(needs, capture_output=True, check=False).returncode:
        cannot_run(f"{' '.join(needs[:-1])} is not installed")
    server = new_server("local")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'name = "ours:{manager}"\nbase = "host"\n[packages]\n{manager} = ["{NAME}"]\n')
    command = [sys.executable, "-m", "casulo.cli", "image", "--config", str(server.data_dir / "test.toml")]
    settings = {"PIP_INDEX_URL": f"{index}/simple", "npm_config_registry": f"{index}/"}
    env = {**os.environ, **settings, "PIP_CONFIG_FILE": os.devnull}
    env = {name: value for name, value in env.items() if name != "PIP_FIND_LINKS"}
    done = subprocess.run([*command, "build", str(recipe)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create(f"ours:{manager}", client=client) as box,
    ):
        assert box.commands.run(f"set -e; {says}").check().stdout == f"from {manager}\n"
