# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What was measured, kept: raw reports as JSON, and a page and pictures made of them and of nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.report import Report

FOLDER = Path(__file__).parent / "results"
_BAR, _ROW, _LEFT, _RIGHT = 420, 22, 260, 110
_CONDITIONS = ("cpu_model", "cpus", "memory_mib", "kernel", "load_before")


def save(report: Report) -> Path:
    """Keep a report in place of the last one of its name."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{report.name}.json"
    path.write_text(json.dumps(json.loads(report.as_json()), indent=1) + "\n")
    return path


def render() -> list[Path]:
    """Make the page and one picture for each kept report that has durations."""
    reports = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    pictures = [(report["name"], picture) for report in reports if (picture := plot(report))]
    for name, picture in pictures:
        (FOLDER / f"{name}.svg").write_text(picture)
    drawn = {name for name, _ in pictures}
    page = FOLDER / "README.md"
    page.write_text(
        "# Results\n\n" + _INTRODUCTION + "".join(_section(r, r["name"] in drawn) for r in reports)
    )
    return [page, *(FOLDER / f"{name}.svg" for name in sorted(drawn))]


_INTRODUCTION = (
    "Made by `./dev bench --render` from the JSON files beside it, which `./dev bench NAME --save` wrote.\n"
    "Each says under what conditions; figures taken at another load are other figures.\n"
)


def _section(report: Mapping[str, Any], drawn: bool) -> str:
    told = report["conditions"]
    conditions = ", ".join(f"{name} {told[name]}" for name in _CONDITIONS if name in told)
    picture = f"![{report['name']}]({report['name']}.svg)\n\n" if drawn else ""
    rows = "".join(f"| {name} | {value} |\n" for name, value in report["figures"].items())
    return f"\n## {report['name']}\n\n{conditions}\n\n{picture}| figure | value |\n|---|---|\n{rows}"


def plot(report: Mapping[str, Any]) -> str:
    """Bars of all durations in milliseconds, on a logarithmic scale; empty when there are none."""
    bars = [
        (name.removesuffix("_ms"), float(value))
        for name, value in report["figures"].items()
        if name.endswith("_ms") and isinstance(value, int | float) and value > 0
    ]
    if not bars:
        return ""
    low = math.floor(math.log10(min(value for _, value in bars)))
    high = max(math.ceil(math.log10(max(value for _, value in bars))), low + 1)
    rows = [_row(number, name, value, low, high) for number, (name, value) in enumerate(bars)]
    width, height = _LEFT + _BAR + _RIGHT, _ROW * (len(bars) + 2)
    marks = "".join(_mark(power, low, high, height) for power in range(low, high + 1))
    title = f'<text x="8" y="15" font-weight="bold">{escape(report["name"])}, milliseconds</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return f'{head} font-family="sans-serif" font-size="12">\n{title}\n{marks}{"".join(rows)}</svg>\n'


def _row(number: int, name: str, value: float, low: int, high: int) -> str:
    y = _ROW * (number + 1) + 4
    length = max(1.0, _BAR * (math.log10(value) - low) / (high - low))
    return (
        f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{_LEFT}" y="{y + 2}" width="{length:.1f}" height="{_ROW - 6}" fill="#4c78a8"/>'
        f'<text x="{_LEFT + length + 6:.1f}" y="{y + 13}">{value:g}</text>\n'
    )


def _mark(power: int, low: int, high: int, height: int) -> str:
    x = _LEFT + _BAR * (power - low) / (high - low)
    return (
        f'<line x1="{x:.1f}" y1="{_ROW}" x2="{x:.1f}" y2="{height - _ROW}" stroke="#ddd"/>'
        f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle" fill="#777">{10.0**power:g}</text>\n'
    )
