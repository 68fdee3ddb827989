# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The form of a result: one JSON object for programs, a table for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

Value = float | int | str | bool


@dataclass(frozen=True)
class Report:
    """`figures` are what was measured, `conditions` what somebody must know to compare them."""

    name: str
    figures: Mapping[str, Value]
    conditions: Mapping[str, Value] = field(default_factory=dict)

    def as_json(self) -> str:
        whole = {"name": self.name, "figures": self.figures, "conditions": {**machine(), **self.conditions}}
        return json.dumps(whole)

    def as_table(self) -> str:
        rows = [*self.figures.items(), ("", ""), *{**machine(), **self.conditions}.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.name, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows)])


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of all lie (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def milliseconds(prefix: str, seconds: Sequence[float]) -> dict[str, Value]:
    """Median, 95th percentile and extremes under names that begin with `prefix`."""
    scaled = [1000 * s for s in seconds]
    return {
        f"{prefix}p50_ms": round(quantile(scaled, 0.5), 2),
        f"{prefix}p95_ms": round(quantile(scaled, 0.95), 2),
        f"{prefix}min_ms": round(min(scaled), 2),
        f"{prefix}max_ms": round(max(scaled), 2),
    }


def machine() -> dict[str, Value]:
    """What this machine is, as far as it matters for a duration."""
    return {
        "casulo": version("casulo"),
        "cpus": os.cpu_count() or 0,
        "cpu_model": _cpu_model(),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
