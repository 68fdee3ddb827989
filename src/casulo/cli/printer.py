# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Results on stdout, everything else on stderr."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from casulo.cli.arguments import Format

if TYPE_CHECKING:
    from rich.console import Console

_STATE_COLORS = {
    "Running": "green",
    "Paused": "yellow",
    "Failed": "red",
    "Terminated": "red",
    "yes": "green",
    "no": "red",
}


class Printer:
    """Prints records, rows and short confirmations in the chosen format."""

    def __init__(self, form: Format, *, color: bool) -> None:
        self.json = form is Format.JSON
        self.raw = form is Format.RAW
        self._color = color

    def record(self, record: object) -> None:
        """One object: JSON, or a line per member."""
        data = plain(record)
        if self.json:
            self._dump(data)
        else:
            self._table(
                [(name, _cell(value)) for name, value in data.items() if value not in (None, "", [], {})]
            )

    def rows(self, rows: Iterable[object], columns: Sequence[str]) -> None:
        """Several objects: a JSON array, or a table of the named members."""
        data = [plain(row) for row in rows]
        if self.json:
            self._dump(data)
        else:
            self._table([[_cell(row.get(c)) for c in columns] for row in data], columns)

    def page(self, page: Mapping[str, Any], columns: Sequence[str]) -> None:
        """A listing: items and pagination as JSON, or the items as a table."""
        if self.json:
            self._dump(plain(page))
            return
        self.rows(page["items"], columns)
        paging = page["pagination"]
        if paging["total_pages"] > 1:
            note(f"page {paging['page']} of {paging['total_pages']}, {paging['total_items']} in all")

    def done(self, message: str, **data: object) -> None:
        """Something was done: a sentence, or `data` as JSON."""
        if self.json:
            self._dump(plain(data))
        else:
            print(message)

    def _dump(self, data: object) -> None:
        print(json.dumps(data, indent=2, ensure_ascii=False))

    def _table(self, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
        if self._color and sys.stdout.isatty():
            _rich_table(rows, columns)
            return
        lines = [[c.upper() for c in columns], *rows] if columns else list(rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def note(message: str) -> None:
    """A remark for the person at the terminal."""
    print(message, file=sys.stderr)


def stderr_console(*, color: bool = True) -> Console:
    """The console for progress."""
    from rich.console import Console

    return Console(stderr=True, no_color=not color)


def plain(value: object) -> Any:
    """Records, times and containers as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_cell(item)}" for key, item in value.items() if item not in (None, ""))
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return str(value)


def _rich_table(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, show_header=bool(columns), header_style="bold", pad_edge=False)
    if not columns:
        table.add_column(style="bold")
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STATE_COLORS.get(cell, "")) for cell in row))
    Console().print(table)
