# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb doctor`: what this machine can do, what it lacks, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from casulo.cli.arguments import Output
from casulo.cli.printer import note
from casulo.cli.state import State

if TYPE_CHECKING:
    from casulo.runtimes.local.doctor import Check
    from casulo.settings import Settings


def doctor(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Config file of the server; ~/.sandbox.toml if there is one.", show_default=False
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Check whether this machine can serve sandboxes; ends with 1 when something required is missing."""
    from casulo.runtimes.docker import doctor as docker
    from casulo.runtimes.local.doctor import report
    from casulo.settings import Settings

    state = State.of(ctx)
    settings = Settings.load(config or state.config_file, os.environ)
    checks = report(settings.local, settings.data_dir)
    checks += docker.report(settings.docker, "docker" in settings.runtime.enabled)
    checks.append(_vault_key(settings))
    state.printer().rows(checks, ["name", "ok", "detail", "fix"])
    missing = [check.name for check in checks if not check.ok and check.required]
    if missing:
        note(f"osb: required and missing: {', '.join(missing)}")
        raise typer.Exit(1)


def _vault_key(settings: Settings) -> Check:
    """Whether the key under which credentials are kept can be used; none is needed before the first vault."""
    from casulo.control.sealing import Keyring
    from casulo.model.errors import CasuloError
    from casulo.runtimes.local.doctor import Check

    try:
        told = Keyring(settings.vault, settings.data_dir).describe()
    except CasuloError as error:
        return Check("vault key", False, error.message, error.hint, required=False)
    return Check("vault key", True, told or "none yet; the first vault makes one", required=False)
