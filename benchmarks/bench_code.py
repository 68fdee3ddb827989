# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The code interpreter under the short name."""

from __future__ import annotations

from benchmarks.bench_interpreter import measure

__all__ = ["measure"]
