# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One cell of code at the terminal: output and values as they come, pictures into files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casulo.cli.follow import TIMED_OUT, Interrupts
from casulo.cli.printer import Printer, note

if TYPE_CHECKING:
    from casulo.client import AsyncSandbox, CellEnded, Value

FAILED = 1
INTERRUPTED = 130
SAVED = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/latex": ".tex",
    "application/pdf": ".pdf",
    "application/json": ".json",
    "application/vnd.casulo.chart+json": ".chart.json",
}


async def run_cell(
    sandbox: AsyncSandbox, code: str, printer: Printer, save_dir: Path | None, options: Mapping[str, Any]
) -> int:
    """Run the cell and show what comes of it; returns the exit code for this process."""
    gallery = Gallery(save_dir)
    if printer.json:
        return await _as_json(sandbox, code, printer, gallery, options)
    from casulo.client import CellEnded, CellStarted, FilesChanged, Output, Value

    async with Interrupts() as interrupts:
        async for item in sandbox.code.stream(code, **options):
            match item:
                case CellStarted(context_id):
                    interrupts.first = lambda: sandbox.code.interrupt(context_id)
                case Output(stream, data):
                    target = (sys.stdout if stream == "stdout" else sys.stderr).buffer
                    target.write(data)
                    target.flush()
                case Value():
                    _show(item, gallery.save(item))
                case FilesChanged(files):
                    for file in files:
                        note(f"{file.change} {file.path} ({file.size} bytes)")
                case CellEnded():
                    return _told(item)
    raise AssertionError("a stream of events gives an end or raises")


async def _as_json(
    sandbox: AsyncSandbox, code: str, printer: Printer, gallery: Gallery, options: Mapping[str, Any]
) -> int:
    result = await sandbox.code.run(code, **options)
    saved = [str(path) for value in result.values for path in gallery.save(value)]
    record = {name: value for name, value in vars(result).items() if not name.endswith("_bytes")}
    printer.record({**record, "stdout": result.stdout, "stderr": result.stderr, "saved": saved})
    return _code(result.error)


class Gallery:
    """Saves rich forms of values under numbers."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._count = 0

    def save(self, value: Value) -> list[Path]:
        """Every form that has a kind of file; nothing when no folder was named."""
        found = [mime for mime in value.forms if mime in SAVED]
        if self._folder is None or not found:
            return []
        self._folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        saved = []
        for mime in found:
            path = self._folder / f"result-{self._count}{SAVED[mime]}"
            path.write_bytes(value.data(mime) or b"")
            saved.append(path)
        return saved


def _show(value: Value, saved: list[Path]) -> None:
    text = value.text or value.markdown or ", ".join(value.forms)
    print(text, flush=True)
    for path in saved:
        note(f"saved {path}")


def _told(end: CellEnded) -> int:
    if end.error is not None:
        for line in end.error.traceback or (str(end.error),):
            note(line)
        if end.error.reason:
            note(f"osb: {end.error}")
    return _code(end.error)


def _code(error: Any) -> int:
    if error is None:
        return 0
    return {"timeout": TIMED_OUT, "interrupted": INTERRUPTED}.get(error.reason, FAILED)
