# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What `osb image build` reads: a small TOML file that says what is in an image. Pure.

name = "tools:1"
base = "suite:bookworm"            # a Debian suite, an image (python:3.12, oci:/folder:tag), or host
entrypoint = ["/usr/bin/tool"]     # also: cmd, workdir, user
[packages]
apt = ["git"]                      # also: pip, npm
[env]
LANG = "C.UTF-8"
[[files]]
path = "/etc/tool.conf"            # with `content`, or `source` beside this file; mode = "0644"
content = "answer = 42"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from casulo.images.config import ImageConfig
from casulo.model.draft import HOST_IMAGE, nearest
from casulo.model.errors import Code, InvalidRequest

SUITE = "suite:"
HOST_PIP, HOST_NPM = "/opt/pip", "/opt/npm"
"""Where packages go when the base is `host`."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUITE = re.compile(r"[a-z][a-z0-9.-]*")
_PACKAGE = re.compile(r"[A-Za-z0-9@][A-Za-z0-9@._+~:/=<>!,\[\]-]*")


@dataclass(frozen=True)
class Packages:
    """Names for each package manager."""

    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """One file: its place in the image, its content or where that is, its mode."""

    path: str
    content: str | None = None
    source: Path | None = None
    mode: int = 0o644


@dataclass(frozen=True)
class Recipe:
    """A whole recipe. None leaves a member as the base has it."""

    name: str
    base: str
    packages: Packages = Packages()
    files: tuple[File, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    workdir: str | None = None
    user: str | None = None

    @property
    def suite(self) -> str:
        """The Debian suite to begin with; empty when the base is an image."""
        return self.base.removeprefix(SUITE) if self.base.startswith(SUITE) else ""

    @property
    def on_host(self) -> bool:
        """Whether the base is this machine's own programs."""
        return self.base == HOST_IMAGE

    def configure(self, base: ImageConfig) -> ImageConfig:
        """The configuration on top of the base's. A new entrypoint voids the base's CMD, as in engines."""
        entrypoint = base.entrypoint if self.entrypoint is None else self.entrypoint
        inherited = base.cmd if self.entrypoint is None else ()
        return replace(
            base,
            entrypoint=entrypoint,
            cmd=inherited if self.cmd is None else self.cmd,
            env={**base.env, **(self._host_env() if self.on_host else {}), **self.env},
            workdir=base.workdir if self.workdir is None else self.workdir,
            user=base.user if self.user is None else self.user,
            on_host=base.on_host or self.on_host,
        )

    def _host_env(self) -> dict[str, str]:
        """How programs find packages that cannot be below /usr, which is the machine's."""
        env, folders = {}, []
        if self.packages.pip:
            env["PYTHONPATH"] = HOST_PIP
            folders.append(f"{HOST_PIP}/bin")
        if self.packages.npm:
            env["NODE_PATH"] = f"{HOST_NPM}/lib/node_modules"
            folders.append(f"{HOST_NPM}/bin")
        return {**env, "PATH": ":".join([*folders, _PATH])} if folders else env


def load(path: Path) -> Recipe:
    """Read a recipe; InvalidRequest names the key that is wrong."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except OSError as error:
        raise _wrong(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"{path} is not valid TOML: {error}") from None


def parse(body: Mapping[str, Any], folder: Path) -> Recipe:
    """From parsed TOML; sources of files are relative to `folder`."""
    _check_keys(body, Recipe, "")
    packages = body.get("packages", {})
    _check_keys(packages, Packages, "packages.")
    lists = {key: _words(value, f"packages.{key}") for key, value in packages.items()}
    for key, names in lists.items():
        for name in names:
            if not _PACKAGE.fullmatch(name):
                raise _wrong(f"packages.{key}: {name!r} is no package name")
    env = body.get("env", {})
    if not isinstance(env, Mapping) or not all(isinstance(v, str) for v in env.values()):
        raise _wrong("env: a table of texts is expected")
    if lists.get("apt") and body.get("base") == HOST_IMAGE:
        raise _wrong(
            "packages.apt: with the base 'host' the programs are this machine's own",
            "install them on this machine, or take suite:bookworm (or another Debian suite) as the base",
        )
    optional = {key: _words(body[key], key) for key in ("entrypoint", "cmd") if key in body}
    return Recipe(
        name=_text(body, "name"),
        base=_base(_text(body, "base")),
        packages=Packages(**lists),
        files=tuple(_file(item, folder) for item in body.get("files", ())),
        env=dict(env),
        workdir=_text(body, "workdir") if "workdir" in body else None,
        user=_text(body, "user") if "user" in body else None,
        entrypoint=optional.get("entrypoint"),
        cmd=optional.get("cmd"),
    )


def _base(base: str) -> str:
    if base.startswith(SUITE) and not _SUITE.fullmatch(base.removeprefix(SUITE)):
        raise _wrong(f"base: {base!r} names no Debian suite")
    return base


def _file(item: Any, folder: Path) -> File:
    if not isinstance(item, Mapping):
        raise _wrong("files: tables are expected, [[files]]")
    _check_keys(item, File, "files.")
    path = _text(item, "path")
    if not path.startswith("/") or ".." in path.split("/") or path.endswith("/"):
        raise _wrong(f"files: {path!r} is no absolute path of a file")
    if ("content" in item) == ("source" in item):
        raise _wrong(f"files: {path} needs either content or source")
    mode = item.get("mode", "0644")
    if not isinstance(mode, str) or not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise _wrong(f'files: {path}: mode is written like "0755"')
    source = folder / _text(item, "source") if "source" in item else None
    return File(path, _text(item, "content") if source is None else None, source, int(mode, 8))


def _check_keys(body: Any, form: type, prefix: str) -> None:
    if not isinstance(body, Mapping):
        raise _wrong(f"{prefix.rstrip('.')}: a table is expected")
    known = [f.name for f in fields(form)]
    for key in body:
        if key not in known:
            raise _wrong(f"unknown key {prefix}{key}", nearest(key, known))


def _words(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _wrong(f"{key}: a list of texts is expected")
    return tuple(value)


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{key}: a text is expected" if key in body else f"the key {key} is missing")
    return value


def _wrong(message: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"image recipe: {message}", code=Code.INVALID_PARAMETER, hint=hint)
