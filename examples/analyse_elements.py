# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What atomic weights say about the order of the elements. Needs nothing but Python.

Usage: analyse_elements.py ELEMENTS.csv RESULT.txt
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator
from itertools import pairwise

Row = dict[str, str]


def main(source: str, result: str) -> None:
    """Read the table, write the findings, say on stdout what goes on."""
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    weighed = [row for row in rows if row["standard_atomic_weight"]]
    print(f"read {len(rows)} elements, {len(weighed)} of them with a standard atomic weight", flush=True)
    lines = [*overview(rows, weighed), "", *periods(weighed), "", *growth(weighed), "", *inversions(weighed)]
    with open(result, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(f"wrote {len(lines)} lines to {result}", flush=True)


def weight(row: Row) -> float:
    """The standard atomic weight."""
    return float(row["standard_atomic_weight"])


def overview(rows: list[Row], weighed: list[Row]) -> Iterator[str]:
    """How many there are, and why some have no weight."""
    yield f"Elements: {len(rows)}"
    yield f"With a standard atomic weight: {len(weighed)}"
    missing = [row["symbol"] for row in rows if not row["standard_atomic_weight"]]
    yield f"Without one (no isotope mixture that is typical on Earth): {len(missing)}, lightest {missing[0]}"


def periods(weighed: list[Row]) -> Iterator[str]:
    """Per period: how many, and how many nucleons come on each proton."""
    yield "period  elements  weight per proton (mean)"
    for period in sorted({row["period"] for row in weighed}):
        members = [row for row in weighed if row["period"] == period]
        ratio = statistics.mean(weight(row) / int(row["number"]) for row in members)
        yield f"{period:>6}  {len(members):>8}  {ratio:>24.3f}"


def growth(weighed: list[Row]) -> Iterator[str]:
    """A straight line through number and weight."""
    numbers = [float(row["number"]) for row in weighed]
    weights = [weight(row) for row in weighed]
    line = statistics.linear_regression(numbers, weights)
    fit = statistics.correlation(numbers, weights)
    yield f"weight = {line.slope:.3f} * number {line.intercept:+.2f}, correlation {fit:.5f}"


def inversions(weighed: list[Row]) -> Iterator[str]:
    """Neighbours of which the earlier is the heavier: the reason why number, not weight, orders the table."""
    yield "Heavier than the next element:"
    for one, other in pairwise(weighed):
        if weight(one) > weight(other):
            yield f"  {one['name']} ({weight(one)}) before {other['name']} ({weight(other)})"


if __name__ == "__main__":
    main(*sys.argv[1:])
