# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb code`: run cells of code, and look after the contexts that keep what they leave."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casulo.cli.arguments import Limit, Output, SandboxId
from casulo.cli.cells import run_cell
from casulo.cli.state import State
from casulo.cli.state import run as run_async

if TYPE_CHECKING:
    from casulo.client import AsyncSandbox, CodeContext

app = typer.Typer(
    help="Run code that keeps its variables, and look after its contexts.", no_args_is_help=True
)

EXTENSIONS = {
    ".py": "python",
    ".js": "javascript",
    ".mjs": "javascript",
    ".ts": "typescript",
    ".java": "java",
    ".jsh": "java",
    ".go": "go",
    ".sh": "bash",
}
Language = Annotated[
    str | None,
    typer.Option("-l", "--language", help="python, javascript, typescript, java, go or bash."),
]
ContextId = Annotated[str, typer.Argument(help="Id of the context.", show_default=False)]


@app.command()
def run(
    ctx: typer.Context,
    file: Annotated[
        str | None, typer.Argument(help="File with the code; - reads it from stdin.", show_default=False)
    ] = None,
    code: Annotated[str | None, typer.Option("-c", "--code", help="The code itself.")] = None,
    sandbox: Annotated[str | None, typer.Option("-s", "--sandbox", help="Sandbox to run in.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="Context to run in.")] = None,
    language: Language = None,
    image: Annotated[str, typer.Option("-i", "--image", help="Image of a new sandbox.")] = "host",
    save_dir: Annotated[
        Path | None, typer.Option("--save-dir", help="Save pictures and other rich results here.")
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw plots as SVG, too.")] = False,
    timeout: Limit = None,
    output: Output = None,
) -> None:
    """Run a cell of code. Without --sandbox it gets a new sandbox, which is removed afterwards.

    Ends with 1 when the code fails, and with 124 when it passed its time limit.
    """
    state = State.of(ctx)
    text = _text(file, code)
    options: dict[str, Any] = {
        "language": language or _language(file, context),
        "context": context,
        "timeout": timeout,
        "figures": ("png", "svg") if svg else (),
    }

    async def main() -> int:
        async with _sandbox(state, sandbox, image) as where:
            return await run_cell(where, text, state.printer(), save_dir, options)

    raise typer.Exit(run_async(main()))


def _language(file: str | None, context: str | None) -> str | None:
    """What the file's name says; None leaves the choice to the context, or to the default."""
    suffix = Path(file or "").suffix
    if suffix and suffix not in EXTENSIONS and not context:
        known = ", ".join(EXTENSIONS)
        raise typer.BadParameter(
            f"{file}: no language is known for {suffix}; give --language (known: {known})"
        )
    return EXTENSIONS.get(suffix)


def _text(file: str | None, code: str | None) -> str:
    if (file is None) == (code is None):
        raise typer.BadParameter("give a file, or the code itself with -c")
    if code is not None:
        return code
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file or "").read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error


def _sandbox(state: State, sandbox_id: str | None, image: str) -> AbstractAsyncContextManager[AsyncSandbox]:
    if sandbox_id is not None:
        return state.sandbox(sandbox_id)
    from casulo.cli.run import own_sandbox

    return own_sandbox(state, {"image": image})


@app.command("contexts")
def list_contexts(
    ctx: typer.Context, sandbox_id: SandboxId, language: Language = None, output: Output = None
) -> None:
    """List the contexts of a sandbox."""
    state = State.of(ctx)

    async def main() -> list[CodeContext]:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.code.contexts(language)

    state.printer().rows(run_async(main()), ("id", "language", "busy"))


@app.command("create")
def create_context(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    language: Language = None,
    workdir: Annotated[str | None, typer.Option("-w", "--workdir", help="Directory to begin in.")] = None,
    output: Output = None,
) -> None:
    """Make a context and print its id."""
    state = State.of(ctx)

    async def main() -> CodeContext:
        async with state.sandbox(sandbox_id) as sandbox:
            return await sandbox.code.create_context(language or "python", cwd=workdir)

    made = run_async(main())
    state.printer().done(made.id, id=made.id, language=made.language)


@app.command("delete")
def delete_context(
    ctx: typer.Context, sandbox_id: SandboxId, context_id: ContextId, output: Output = None
) -> None:
    """End a context with everything that its cells started."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.code.delete_context(context_id)

    run_async(main())
    state.printer().done(f"deleted {context_id}", id=context_id, status="deleted")


@app.command()
def interrupt(
    ctx: typer.Context, sandbox_id: SandboxId, context_id: ContextId, output: Output = None
) -> None:
    """Stop the cell that runs in a context."""
    state = State.of(ctx)

    async def main() -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.code.interrupt(context_id)

    run_async(main())
    state.printer().done(f"interrupted {context_id}", id=context_id, status="interrupted")
