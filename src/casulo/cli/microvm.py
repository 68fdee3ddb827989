# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb microvm`: what virtual machines need on this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from casulo.cli.arguments import Output
from casulo.cli.printer import note
from casulo.cli.state import State

app = typer.Typer(no_args_is_help=True)


@app.callback()
def microvm() -> None:
    """Virtual machines of this host."""


@app.command()
def setup(
    ctx: typer.Context,
    package: Annotated[
        Path | None,
        typer.Argument(
            help="A linux-image-*-cloud-*.deb of Debian; without it, apt fetches one.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The server's config file.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """Get the kernel that virtual machines run. Nothing is installed on this machine."""
    from casulo.runtimes.microvm import host, kernel
    from casulo.runtimes.microvm.store import Store
    from casulo.settings import Settings

    settings = Settings.load(config, os.environ)
    store = Store(settings.microvm.place(settings.data_dir))
    store.prepare()
    if package is None:
        note("osb: fetching Debian's kernel for clouds with apt")
    found = kernel.unpack(package, store.kernels) if package else kernel.fetch(store.kernels)
    _, why_no_kvm = host.accelerator("auto", found)
    accelerator = f"software emulation ({why_no_kvm})" if why_no_kvm else "KVM"
    facts = {"kernel": found.release, "folder": str(found.path), "accelerator": accelerator}
    State.of(ctx).printer().rows([facts], list(facts))
