# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb image`: the images on this machine. Works on the store itself, whether or not a server runs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli.arguments import Env, Output, pairs
from casulo.cli.printer import note
from casulo.cli.progress import Transfer
from casulo.cli.state import State, run
from casulo.model.errors import Code, InvalidRequest, Unsupported

if TYPE_CHECKING:
    from casulo.images.ids import Ids
    from casulo.images.prune import Pruned
    from casulo.images.report import Progress
    from casulo.images.store import Image, ImageStore
    from casulo.settings import Settings

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="For example python:3.12 or oci:/folder:tag.", show_default=False)]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CONFIG = "casulo.image.config"


@app.callback()
def image(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The server's config file; ~/.sandbox.toml if there is one."),
    ] = None,
) -> None:
    """Keep images on this machine, in the store of the server with the same configuration."""
    ctx.meta[_CONFIG] = config or State.of(ctx).config_file


@app.command()
def ls(ctx: typer.Context, output: Output = None) -> None:
    """List the images that are here."""
    printer = State.of(ctx).printer()

    async def main() -> None:
        async with _store(ctx) as store:
            images = await store.list()
        if printer.json:
            printer.rows(images, ())
            return
        printer.rows(
            [
                {
                    "name": name,
                    "digest": image.digest[:19],
                    "platform": image.platform,
                    "layers": image.layers,
                    "size": _size(image.size),
                }
                for image in images
                for name in image.names or ("",)
            ],
            ("name", "digest", "platform", "layers", "size"),
        )

    run(main())


@app.command()
def pull(
    ctx: typer.Context,
    name: Name,
    username: Annotated[str | None, typer.Option("-u", "--username", help="User at the registry.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    platform: Annotated[
        str | None, typer.Option(metavar="OS/ARCH", help="Instead of this machine's own.")
    ] = None,
    output: Output = None,
) -> None:
    """Fetch an image, or its newer version, from a registry, a file or a Docker daemon."""
    from casulo.model.credentials import Credentials
    from casulo.model.sandbox import Platform

    if (username is None) == password_stdin:
        raise typer.BadParameter("--username and --password-stdin belong together")
    login = Credentials(username, sys.stdin.readline().rstrip("\n")) if username is not None else None
    system, _, architecture = (platform or "").partition("/")
    where = Platform(system, architecture.partition("/")[0]) if platform else None

    async def main() -> Image:
        async with _store(ctx) as store:
            with _shown(f"pulling {name}") as progress:
                return await store.pull(name, login, where, progress)

    image = run(main())
    _done(ctx, f"pulled {image.name}", image)


@app.command("import")
def import_(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="A root file system: a folder, or an archive of one.")],
    name: Annotated[str, typer.Argument(help="What to call the image.", show_default=False)],
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", help="Program to start; again for each argument.")
    ] = None,
    workdir: Annotated[str, typer.Option("-w", "--workdir", help="Directory to start it in.")] = "/",
    user: Annotated[str, typer.Option("--user", help="User to start it as: name or number.")] = "",
    env: Env = None,
    output: Output = None,
) -> None:
    """Make an image of a root file system."""
    from casulo.images.config import ImageConfig

    config = ImageConfig(
        entrypoint=tuple(entrypoint or ()), env=pairs(env, "--env"), workdir=workdir, user=user
    )
    _check_name(name)

    async def main() -> Image:
        async with _store(ctx) as store:
            with _shown(f"importing {source}") as progress:
                return await store.import_image(source, name, config, progress=progress)

    image = run(main())
    _done(ctx, f"imported {image.name}", image)


@app.command()
def build(
    ctx: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="The TOML file that says what is in the image.")],
    name: Annotated[str | None, typer.Option("--name", help="Instead of the name in the file.")] = None,
    output: Output = None,
) -> None:
    """Make an image of a recipe: a Debian suite or an image, packages, files, settings. Needs root."""
    from casulo.images import recipe as recipes

    wanted = recipes.load(recipe)
    wanted = replace(wanted, name=name or wanted.name)
    _check_name(wanted.name)

    async def main() -> Image:
        async with _store(ctx) as store:
            return await store.build(wanted, os.environ, note)

    image = run(main())
    _done(ctx, f"built {image.name}", image)


@app.command()
def rm(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Names, or digests or their beginnings.")],
    output: Output = None,
) -> None:
    """Remove images. One that a sandbox uses is kept, and that is an error."""

    async def main() -> list[Pruned]:
        async with _store(ctx) as store:
            return [await store.remove(name) for name in names]

    _removed(ctx, run(main()))


@app.command()
def prune(
    ctx: typer.Context,
    every: Annotated[
        bool, typer.Option("-a", "--all", help="Also images with a name that no sandbox uses.")
    ] = False,
    output: Output = None,
) -> None:
    """Remove what nothing refers to: layers without an image, images without a name."""

    async def main() -> list[Pruned]:
        async with _store(ctx) as store:
            return [await store.prune(unused=every)]

    _removed(ctx, run(main()))


@asynccontextmanager
async def _store(ctx: typer.Context) -> AsyncIterator[ImageStore]:
    settings = _settings(ctx.meta[_CONFIG])
    from casulo.images.store import ImageStore

    store = ImageStore(settings.images_dir, settings.images, _ids(settings))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _settings(config: Path | None) -> Settings:
    try:
        from casulo.settings import Settings
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"this installation keeps no images: {error}",
            code=Code.HOST_UNSUPPORTED,
            hint="install it with: pip install 'casulo[server]'",
        ) from error
    return Settings.load(config, os.environ)


def _ids(settings: Settings) -> Ids:
    """For whom a server with these settings would unpack. A wrong guess costs it one copy of the layers."""
    from casulo.images.ids import PLAIN, Ids
    from casulo.runtimes.local import host

    if not host.is_privileged():
        return Ids(None)
    try:
        is_crun = host.find_oci_runtime(settings.local.oci_runtime).name == "crun"
    except Unsupported:
        is_crun = settings.local.oci_runtime != "runc"
    return Ids(host.ID_BASE) if is_crun and settings.local.userns != "off" else PLAIN


def _check_name(name: str) -> None:
    from casulo.model.draft import HOST_IMAGE

    if name.partition(":")[0] == HOST_IMAGE:
        raise InvalidRequest(
            f"{HOST_IMAGE!r} is this machine's own image and no other can have the name",
            code=Code.INVALID_PARAMETER,
        )


@contextmanager
def _shown(what: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error once it takes long."""
    bar: Transfer | None = None
    seen = 0

    def tell(progress: Progress) -> None:
        nonlocal bar, seen
        if bar is None:
            bar = Transfer(what, progress.total or None)
        bar.add(progress.bytes - seen)
        seen = progress.bytes

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()


def _done(ctx: typer.Context, message: str, image: Image) -> None:
    State.of(ctx).printer().done(
        f"{message}\n{image.digest}",
        name=image.name,
        digest=image.digest,
        platform=image.platform,
        layers=len(image.layers),
    )


def _removed(ctx: typer.Context, pruned: list[Pruned]) -> None:
    names = [name for one in pruned for name in one.names]
    images = [digest for one in pruned for digest in one.images]
    layers, size = sum(one.layers for one in pruned), sum(one.bytes for one in pruned)
    told = [f"removed {word}" for word in dict.fromkeys([*names, *images])]
    State.of(ctx).printer().done(
        "\n".join([*told, f"{layers} layers, {_size(size)}"]),
        names=names,
        images=images,
        layers=layers,
        bytes=size,
    )


def _size(count: int) -> str:
    power = min(len(_UNITS) - 1, max(0, int(count).bit_length() - 1) // 10)
    return f"{count / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"
