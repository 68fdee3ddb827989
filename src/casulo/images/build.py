# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Building an image of a recipe: a Debian suite by mmdebstrap, or an image with a layer on top. Blocking.

The steps run as root in a chroot, in a mount namespace of their own, with this machine's network and
its configuration of apt, pip and npm. A recipe is trusted like any script of its author's; building is
for this machine's administrator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from casulo import linux
from casulo.images import aptsources, rooted
from casulo.images.recipe import HOST_NPM, HOST_PIP, File, Recipe
from casulo.model.errors import Code, InvalidRequest, RuntimeFailure, Unsupported

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PRIVATE = "run/casulo-build"
"""Below the image's root, on a file system in memory: what only the steps may see."""

_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_OVERLAY = "redirect_dir=off,metacopy=off,index=off"  # so that the upper layer alone says what changed
_MANAGERS = {"pip": "python3-pip", "npm": "npm"}
_LEFTOVERS = (
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "etc/resolv.conf",
    "etc/hostname",
)
_TAIL = 3000


@dataclass(frozen=True)
class Tree:
    """Where the image is put together. `lower` are the layers of a base, lowest first.

    `shown` are folders of this machine that the base has, read-only.
    """

    place: Path
    lower: tuple[Path, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """What the steps see as /."""
        return self.place / "root"

    @property
    def result(self) -> Path:
        """What becomes the layer."""
        return self.place / "upper" if self.lower else self.root


def check(recipe: Recipe) -> None:
    """Unsupported unless this process can build it here."""
    if os.geteuid() != 0 or not linux.has_capability("CAP_SYS_ADMIN"):
        raise Unsupported(
            "building needs root: packages are installed in a chroot",
            code=Code.HOST_UNSUPPORTED,
            hint="run it as root, or import a root file system that was made elsewhere",
        )
    if recipe.suite and shutil.which("mmdebstrap") is None:
        raise Unsupported(
            "Debian suites are installed by mmdebstrap, which is missing",
            code=Code.HOST_UNSUPPORTED,
            hint="apt-get install mmdebstrap",
        )


def build(recipe: Recipe, tree: Tree, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Fill `tree`. `env` is the caller's environment; of it only proxies and pip's settings are used."""
    tree.root.mkdir(parents=True)
    if recipe.suite:
        say(f"installing Debian {recipe.suite}")
        _bootstrap(recipe, tree)
    linux.in_own_thread(lambda: _in_namespace(recipe, tree, env, say))


def _bootstrap(recipe: Recipe, tree: Tree) -> None:
    managers = [_MANAGERS[name] for name in _MANAGERS if getattr(recipe.packages, name)]
    include = ",".join(dict.fromkeys([*recipe.packages.apt, *managers, "ca-certificates"]))
    sources = tree.place / "sources.list"
    sources.write_text(aptsources.for_suite(recipe.suite))
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", f"--include={include}"]
    command += [f"--aptopt={option}" for option in _apt_options()]
    command += ["--dpkgopt=force-unsafe-io"]  # a build that is cut short is thrown away
    command += ['--setup-hook=mkdir -p "$1/etc/apt/apt.conf.d"', recipe.suite, str(tree.root)]
    command += [str(sources)] if sources.stat().st_size else []
    _run(command, {"PATH": _PATH, "TMPDIR": str(tree.place)})
    for leftover in _LEFTOVERS:
        (tree.root / leftover).unlink(missing_ok=True)


def _apt_options() -> list[str]:
    """How this machine's apt fetches: proxies, time-outs, whether dates are checked."""
    told = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=False)
    lines = [line.strip() for line in told.stdout.splitlines()]
    return [line for line in lines if line.endswith('";') and not line.endswith('"";')]


def _in_namespace(recipe: Recipe, tree: Tree, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """In a thread of its own: its mounts are nobody else's, and end with it."""
    linux.private_mounts()
    if tree.lower:
        for name in ("upper", "work"):
            (tree.place / name).mkdir()
        lower = ":".join(str(layer) for layer in reversed(tree.lower))
        options = f"lowerdir={lower},upperdir={tree.place}/upper,workdir={tree.place}/work,{_OVERLAY}"
        linux.mount("overlay", str(tree.root), "overlay", linux.MS_NODEV, options)
    for path in tree.shown:
        linux.bind(path, f"{tree.root}{path}")
        linux.mount("", f"{tree.root}{path}", "", linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)
    steps = _steps(recipe)
    root = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if steps:
            _furnish(recipe, root)
            for what, command in steps:
                say(what)
                _run(["chroot", str(tree.root), *command], _step_environment(env))
        for file in recipe.files:
            _write(root, file)
    finally:
        os.close(root)


def _steps(recipe: Recipe) -> list[tuple[str, list[str]]]:
    packages = recipe.packages
    steps = []
    if packages.apt and not recipe.suite:
        apt = ["apt-get", "-q", "-y", *_own_sources()]
        steps.append(("reading the lists of packages", [*apt, "update"]))
        install = [*apt, "--no-install-recommends", "install", *packages.apt]
        steps.append((f"installing with apt: {' '.join(packages.apt)}", install))
    if packages.pip:
        pip = ["python3", "-m", "pip", "install", "--no-cache-dir", "--root-user-action=ignore"]
        pip += ["--target", HOST_PIP] if recipe.on_host else []
        steps.append((f"installing with pip: {' '.join(packages.pip)}", [*pip, *packages.pip]))
    if packages.npm:
        npm = ["npm", "install", "--global", "--no-audit", "--no-fund"]
        npm += ["--prefix", HOST_NPM] if recipe.on_host else []
        steps.append((f"installing with npm: {' '.join(packages.npm)}", [*npm, *packages.npm]))
    return steps


def _own_sources() -> list[str]:
    given = f"/{_PRIVATE}/sources.list"
    options = ["APT::Sandbox::User=root", f"Dir::Etc::sourcelist={given}", "Dir::Etc::sourceparts=/dev/null"]
    return [word for option in options for word in ("-o", option)]


def _furnish(recipe: Recipe, root: int) -> None:
    """The mounts that programs expect. Places in the image are opened below its root, never followed out."""
    for name in ("dev", "proc", "run", "tmp"):
        _directory(root, name)
    _mount(root, "proc", "proc", "")
    for name in ("dev", "run", "tmp"):
        _mount(root, name, "tmpfs", "mode=1777" if name == "tmp" else "mode=755")
    for name in _DEVICES:
        _bind(Path("/dev") / name, root, f"dev/{name}")
    _directory(root, _PRIVATE)
    for source, target in (
        (Path("/etc/resolv.conf"), "etc/resolv.conf"),
        (_CERTIFICATES, f"{_PRIVATE}/ca.pem"),
    ):
        if source.is_file():
            _bind(source, root, target)
    if recipe.packages.apt and not recipe.suite:
        suite = _codename(root)
        listed = aptsources.for_suite(suite) if suite else ""
        _put(root, f"{_PRIVATE}/sources.list", listed.encode(), 0o644)
        for name in ("var/lib/apt/lists", "var/cache/apt"):
            _mount(root, name, "tmpfs", "mode=755")


def _codename(root: int) -> str:
    try:
        descriptor = rooted.open_below(root, b"etc/os-release", os.O_RDONLY)
    except OSError:
        return ""
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        lines = file.read(1 << 16).splitlines()
    return next(
        (line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), ""
    )


def _step_environment(env: Mapping[str, str]) -> dict[str, str]:
    passed = {name: env[name] for name in _PASSED_ON if name in env}
    private = f"/{_PRIVATE}/ca.pem"
    certificates = dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"), private)
    return {
        "PATH": _PATH,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **passed,
        **_pip_settings(env),
        **(certificates if _CERTIFICATES.is_file() else {}),
        **_npm_settings(env),
    }


def _pip_settings(env: Mapping[str, str]) -> dict[str, str]:
    """This machine's package index, in the words of pip's environment variables."""
    found = {}
    for line in _told(["python3", "-m", "pip", "config", "list"], env).splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].upper().replace("-", "_")
        if name in ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY"):
            found[f"PIP_{name}"] = value.strip("'\"")
    return found


def _npm_settings(env: Mapping[str, str]) -> dict[str, str]:
    registry = _told(["npm", "config", "get", "registry"], env).strip()
    return {"NPM_CONFIG_REGISTRY": registry} if registry.startswith("http") else {}


def _told(command: Sequence[str], env: Mapping[str, str]) -> str:
    """What a program of this machine says; nothing when it is not installed."""
    if shutil.which(command[0], path=env.get("PATH")) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(env), timeout=60)
    return done.stdout if done.returncode == 0 else ""


def _run(command: Sequence[str], env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(env),
        )
    except FileNotFoundError as error:
        raise Unsupported(f"{command[0]} is not installed", code=Code.HOST_UNSUPPORTED) from error
    if done.returncode != 0:
        raise RuntimeFailure(
            f"a step of the build failed with {done.returncode}: {done.stdout.strip()[-_TAIL:]}",
            code=Code.IMAGE_INVALID,
        )


# Places in the image's tree


def _directory(root: int, path: str) -> None:
    """Make a directory and those above it; links on the way are followed within the image."""
    above = ""
    for part in path.split("/"):
        parent = rooted.open_below(root, above.encode(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.mkdir(part, 0o755, dir_fd=parent)
        except FileExistsError:
            pass
        finally:
            os.close(parent)
        above = f"{above}/{part}".lstrip("/")


def _mount(root: int, path: str, kind: str, options: str) -> None:
    _directory(root, path)
    target = rooted.open_below(root, path.encode(), os.O_PATH | os.O_DIRECTORY)
    try:
        linux.mount(kind, f"/proc/self/fd/{target}", kind, linux.MS_NOSUID, options)
    finally:
        os.close(target)


def _bind(source: Path, root: int, path: str) -> None:
    """Show a file of this machine at `path`."""
    try:
        target = rooted.open_below(root, path.encode(), os.O_PATH)
    except OSError:
        _put(root, path, b"", 0o644)
        target = rooted.open_below(root, path.encode(), os.O_PATH)
    try:
        linux.bind(str(source.resolve()), f"/proc/self/fd/{target}")
    finally:
        os.close(target)


def _write(root: int, file: File) -> None:
    if file.source is None:
        content = (file.content or "").encode()
    else:
        try:
            content = file.source.read_bytes()
        except OSError as error:
            raise InvalidRequest(
                f"image recipe: files: {file.source}: {error.strerror}", code=Code.INVALID_PARAMETER
            ) from None
    try:
        _put(root, file.path, content, file.mode)
    except OSError as error:
        raise InvalidRequest(
            f"image recipe: files: {file.path} cannot be written: {error.strerror}",
            code=Code.INVALID_PARAMETER,
            hint="with the base 'host', what is below /usr is this machine's own and stays as it is",
        ) from error


def _put(root: int, path: str, content: bytes, mode: int) -> None:
    folder, _, name = path.strip("/").rpartition("/")
    if folder:
        _directory(root, folder)
    parent = rooted.open_below(root, folder.encode(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        if _is_link(parent, name):
            os.unlink(name, dir_fd=parent)
        with open(os.open(name, flags, mode, dir_fd=parent), "wb") as out:
            out.write(content)
            os.fchmod(out.fileno(), mode)
    finally:
        os.close(parent)


def _is_link(parent: int, name: str) -> bool:
    try:
        return os.readlink(name, dir_fd=parent) is not None
    except OSError:
        return False
