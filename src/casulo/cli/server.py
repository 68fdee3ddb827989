# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb server`: serve sandboxes from this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli.state import State
from casulo.model.errors import Code, Unsupported

if TYPE_CHECKING:
    from casulo.settings import Settings


def server(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Config file; ~/.sandbox.toml if there is one.", show_default=False),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")] = None,
    images_dir: Annotated[
        Path | None,
        typer.Option("--images-dir", hidden=True, help="Where images are kept, unless configured."),
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="Stop when the process that started it ends.")
    ] = False,
) -> None:
    """Serve sandboxes from this machine until it is stopped.

    The first start makes an API key, which clients on this machine find by themselves.
    """
    if with_parent:
        _stop_with_parent()
    _keep_memory_private()
    try:
        from casulo.api import serve
        from casulo.settings import Settings
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"this installation has no server: {error}",
            code=Code.HOST_UNSUPPORTED,
            hint="install it with: pip install 'casulo[server]'",
        ) from error
    settings = Settings.load(config or State.of(ctx).config_file, os.environ)
    if images_dir and settings.images.folder is None:
        images = settings.images.model_copy(update={"folder": images_dir})
        settings = settings.model_copy(update={"images": images})
    serve.run(_overridden(settings, host=host, port=port, data_dir=data_dir))


def _overridden(settings: Settings, **given: object) -> Settings:
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


def _stop_with_parent() -> None:
    """Have the kernel send TERM when our parent dies; it may be killed without a chance to do so itself."""
    from casulo.linux import terminate_with_parent

    terminate_with_parent()


def _keep_memory_private() -> None:
    if sys.platform == "linux":
        from casulo import linux

        linux.keep_memory_private()
