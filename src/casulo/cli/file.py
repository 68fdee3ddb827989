# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb file`: the files of a sandbox, and copies from here to there and back."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

import typer

from casulo.cli.arguments import Output, SandboxId
from casulo.cli.progress import Transfer, Watched, transfer, waiting
from casulo.cli.state import State, run

if TYPE_CHECKING:
    from casulo.client import AsyncFiles, FileInfo

T = TypeVar("T")
app = typer.Typer(help="Read, write and copy files.", no_args_is_help=True)

Place = Annotated[str, typer.Argument(help="Path in the sandbox.", show_default=False)]
Places = Annotated[list[str], typer.Argument(help="Paths in the sandbox.", show_default=False)]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of the text.")]
Mode = Annotated[str | None, typer.Option("--mode", help="Permissions, such as 0644.")]
Owner = Annotated[str | None, typer.Option("--owner", help="User who owns it.")]
Group = Annotated[str | None, typer.Option("--group", help="Group that owns it.")]
COLUMNS = ["path", "type", "size", "mode", "owner", "group", "modified_at"]


def _with_files(
    ctx: typer.Context, sandbox_id: str, use: Callable[[AsyncFiles], Awaitable[T]], *, quiet: bool = False
) -> T:
    """`quiet` where the result itself appears bit by bit."""

    async def main() -> T:
        async with State.of(ctx).sandbox(sandbox_id) as sandbox:
            if quiet:
                return await use(sandbox.files)
            async with waiting("working"):
                return await use(sandbox.files)

    return run(main())


@app.command()
def cat(ctx: typer.Context, sandbox_id: SandboxId, path: Place, encoding: Encoding = None) -> None:
    """Print a file, byte by byte as it is; with an encoding as text in it."""

    async def copy(files: AsyncFiles) -> None:
        if encoding is not None:
            print(await files.read(path, encoding=encoding), end="")
            return
        async with aclosing(files.stream(path)) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()

    _with_files(ctx, sandbox_id, copy, quiet=True)


@app.command()
def write(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    path: Place,
    content: Annotated[str | None, typer.Option("-c", "--content", help="What to write; else stdin.")] = None,
    encoding: Encoding = None,
    mode: Mode = None,
    owner: Owner = None,
    group: Group = None,
    output: Output = None,
) -> None:
    """Write a file from an option or from stdin."""
    data = sys.stdin.buffer if content is None else content.encode(encoding or "utf-8")

    async def put(files: AsyncFiles) -> None:
        await files.write(path, data, mode=mode, owner=owner, group=group)

    _with_files(ctx, sandbox_id, put)
    State.of(ctx).printer().done(f"wrote {path}", path=path, status="written")


@app.command()
def upload(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    local_path: Annotated[Path, typer.Argument(help="File here; - is stdin.", show_default=False)],
    remote_path: Place,
    output: Output = None,
) -> None:
    """Copy a file from here into a sandbox."""
    state = State.of(ctx)

    async def put(file: BinaryIO, shown: Transfer) -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            await sandbox.files.write(remote_path, Watched(file, shown))

    if str(local_path) == "-":
        with transfer("uploading", None) as shown:
            run(put(sys.stdin.buffer, shown))
    else:
        with local_path.open("rb") as file, transfer("uploading", local_path.stat().st_size) as shown:
            run(put(file, shown))
    state.printer().done(
        f"uploaded {local_path} to {remote_path}", path=remote_path, source=str(local_path), status="uploaded"
    )


@app.command()
def download(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    remote_path: Place,
    local_path: Annotated[
        Path, typer.Argument(help="File or directory here; - is stdout.", show_default=False)
    ],
    output: Output = None,
) -> None:
    """Copy a file from a sandbox to here. An existing file is replaced only by a whole one."""
    from casulo.client.staging import staged

    state = State.of(ctx)
    if local_path.is_dir():
        local_path = local_path / PurePosixPath(remote_path).name

    async def fetch(file: BinaryIO) -> None:
        async with state.sandbox(sandbox_id) as sandbox:
            size = (await sandbox.files.info(remote_path)).size
            with transfer("downloading", size) as shown:
                async with aclosing(sandbox.files.stream(remote_path)) as chunks:
                    async for chunk in chunks:
                        file.write(chunk)
                        shown.add(len(chunk))

    if str(local_path) == "-":
        run(fetch(sys.stdout.buffer))
        sys.stdout.buffer.flush()
        return
    with staged(local_path) as file:
        run(fetch(file))
    state.printer().done(
        f"downloaded {remote_path} to {local_path}",
        path=str(local_path),
        source=remote_path,
        status="downloaded",
    )


@app.command()
def rm(ctx: typer.Context, sandbox_id: SandboxId, paths: Places, output: Output = None) -> None:
    """Delete files; those that do not exist are no error."""
    _with_files(ctx, sandbox_id, lambda files: files.delete(*paths))
    _each(ctx, paths, "deleted")


@app.command()
def mv(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    source: Place,
    destination: Place,
    output: Output = None,
) -> None:
    """Move or rename a file or directory."""
    _with_files(ctx, sandbox_id, lambda files: files.move(source, destination))
    printer = State.of(ctx).printer()
    printer.done(f"moved {source} to {destination}", source=source, destination=destination, status="moved")


@app.command()
def mkdir(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    paths: Places,
    mode: Mode = None,
    owner: Owner = None,
    group: Group = None,
    output: Output = None,
) -> None:
    """Make directories with all their parents."""
    _with_files(ctx, sandbox_id, lambda files: files.mkdir(*paths, mode=mode, owner=owner, group=group))
    _each(ctx, paths, "created")


@app.command()
def rmdir(ctx: typer.Context, sandbox_id: SandboxId, paths: Places, output: Output = None) -> None:
    """Remove directories with everything in them."""
    _with_files(ctx, sandbox_id, lambda files: files.rmdir(*paths))
    _each(ctx, paths, "removed")


@app.command("ls")
def list_(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    path: Place,
    depth: Annotated[int, typer.Option(min=1, help="How many levels down.")] = 1,
    output: Output = None,
) -> None:
    """List what is in a directory."""
    found = _with_files(ctx, sandbox_id, lambda files: files.list(path, depth=depth))
    State.of(ctx).printer().rows(map(_described, found), COLUMNS)


@app.command()
def search(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    path: Place,
    pattern: Annotated[str, typer.Option("-p", "--pattern", help="Glob for the name, such as *.py.")],
    output: Output = None,
) -> None:
    """Find files by name below a directory."""
    found = _with_files(ctx, sandbox_id, lambda files: files.search(path, pattern))
    State.of(ctx).printer().rows(map(_described, found), COLUMNS)


@app.command()
def info(ctx: typer.Context, sandbox_id: SandboxId, paths: Places, output: Output = None) -> None:
    """Show size, owner, mode and times."""
    found = _with_files(ctx, sandbox_id, lambda files: files.info_many(paths))
    rows = [{**_described(entry), "path": path} for path, entry in found.items()]
    State.of(ctx).printer().rows(rows, COLUMNS)


@app.command()
def chmod(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    path: Place,
    mode: Annotated[str, typer.Option("--mode", help="Permissions, such as 0755.")],
    owner: Owner = None,
    group: Group = None,
    output: Output = None,
) -> None:
    """Set permissions, and the owner if wanted."""
    _with_files(ctx, sandbox_id, lambda files: files.chmod(path, mode, owner=owner, group=group))
    State.of(ctx).printer().done(f"set {path} to {mode}", path=path, mode=mode, status="changed")


@app.command()
def replace(
    ctx: typer.Context,
    sandbox_id: SandboxId,
    path: Place,
    old: Annotated[str, typer.Option("--old", help="Text to look for.")],
    new: Annotated[str, typer.Option("--new", help="Text to put in its place.")],
    output: Output = None,
) -> None:
    """Replace every occurrence of a text in a file."""
    count = _with_files(ctx, sandbox_id, lambda files: files.replace(path, old, new))
    State.of(ctx).printer().done(f"replaced {count} in {path}", path=path, replaced_count=count)


def _each(ctx: typer.Context, paths: list[str], status: str) -> None:
    rows = [{"path": path, "status": status} for path in paths]
    State.of(ctx).printer().rows(rows, ["path", "status"])


def _described(entry: FileInfo) -> dict[str, Any]:
    """A file as scripts read it; the mode as people write it."""
    return {**vars(entry), "mode": f"{entry.mode:04o}"}
