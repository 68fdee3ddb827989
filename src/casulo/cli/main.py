# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb`: the options before the command, and the list of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from casulo import __version__
from casulo.cli import (
    audit,
    code,
    command,
    config,
    copy,
    doctor,
    egress,
    file,
    image,
    isolated,
    key,
    microvm,
    pool,
    run,
    sandbox,
    server,
    shell,
    snapshot,
    store,
    template,
    vault,
    version,
)
from casulo.cli.arguments import Format
from casulo.cli.edge import Edge
from casulo.cli.state import State

CONTEXT = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="osb",
    cls=Edge,
    help="Sandboxes for code that nobody has read yet.",
    context_settings=CONTEXT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the framed help would take longer to load than most commands take to run
)
app.command("server", context_settings=CONTEXT)(server.server)
# The first word that is no option is the program; what follows it, options included, is the program's.
app.command("run", context_settings={**CONTEXT, "allow_interspersed_args": False})(run.run_command)
app.command("shell", context_settings=CONTEXT)(shell.shell)
app.command("cp", context_settings=CONTEXT)(copy.copy)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(command.app, name="command")
app.add_typer(code.app, name="code")
app.add_typer(file.app, name="file")
app.add_typer(image.app, name="image")
app.add_typer(isolated.app, name="isolated")
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(egress.app, name="egress")
app.add_typer(vault.app, name="vault")
app.add_typer(vault.app, name="credential-vault", hidden=True)  # as other clients call it
app.add_typer(template.app, name="template")
app.add_typer(key.app, name="key")
app.add_typer(pool.app, name="pool")
app.add_typer(audit.app, name="audit")
app.add_typer(store.app, name="store")
app.add_typer(microvm.app, name="microvm")
app.add_typer(config.app, name="config")
app.command("doctor", context_settings=CONTEXT)(doctor.doctor)
app.command("version", context_settings=CONTEXT)(version.version)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"osb {__version__}")
        raise typer.Exit


@app.callback()
def osb(
    ctx: typer.Context,
    domain: Annotated[str | None, typer.Option(help="Address of the server, host:port.")] = None,
    api_key: Annotated[str | None, typer.Option(help="API key of the server.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="http|https", help="How to reach it.")] = None,
    request_timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for one answer.")
    ] = None,
    use_server_proxy: Annotated[
        bool | None,
        typer.Option(
            "--use-server-proxy/--no-use-server-proxy",
            help="Reach sandboxes through the server.",
            show_default=False,
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Config file; ~/.opensandbox/config.toml by default.", show_default=False
        ),
    ] = None,
    output: Annotated[Format | None, typer.Option("-o", "--output", help="How results are printed.")] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show where errors come from.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours.")] = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options that every command shares."""
    ctx.obj = State(
        domain=domain,
        api_key=api_key,
        protocol=protocol,
        request_timeout=request_timeout,
        use_server_proxy=use_server_proxy,
        config_file=config_file,
        output=output,
        verbose=verbose,
        color=not no_color,
    )
