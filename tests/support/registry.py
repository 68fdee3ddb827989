# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A real image registry on the loopback address, with or without a password, for one test session."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER, PASSWORD = "reader", "open sesame"
_HASH = "$2b$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"
_PATIENCE = 20.0


def why_not() -> str:
    """Empty when a registry can be started here."""
    missing = [name for name in ("docker-registry", "skopeo") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Registry:
    """Where it listens, and whether it asks who is there."""

    address: str
    protected: bool
    folder: Path

    def push(self, layout: str, name: str) -> str:
        """Copy an `oci:` reference here, lists of images whole; the name for the store."""
        login = ["--dest-creds", f"{USER}:{PASSWORD}"] if self.protected else []
        target = f"docker://{self.address}/{name}"
        command = [
            "skopeo",
            "copy",
            "--all",
            "--preserve-digests",
            "--dest-tls-verify=false",
            *login,
            layout,
            target,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return f"{self.address}/{name}"

    def blob(self, digest: str) -> Path:
        """Where it keeps a blob: tests damage it there."""
        value = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / value[:2] / value / "data"

    def requests(self, words: str) -> int:
        """How many answered requests have `words` in their log line."""
        return sum(
            words in line for line in (self.folder / "log").read_text().splitlines() if "HTTP/1.1" in line
        )


@contextmanager
def serving(folder: Path, *, protected: bool = False) -> Iterator[Registry]:
    """Start one, with its data in `folder`, and end it."""
    address = f"127.0.0.1:{_free_port()}"
    config = folder / "config.json"
    config.write_text(json.dumps(_config(folder, address, protected)))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _await_answer(address, process)
        yield Registry(address, protected, folder)
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _config(folder: Path, address: str, protected: bool) -> dict[str, object]:
    config: dict[str, object] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    if protected:
        (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    return config


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _await_answer(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=1).close()
            return
        except urllib.error.HTTPError:  # it asks for a password
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the registry did not start")
