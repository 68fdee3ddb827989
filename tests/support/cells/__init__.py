# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Cells of code with what has to come of them. The cells of a language share a context, in order."""

from __future__ import annotations

from dataclasses import dataclass

from casulo.client import CodeResult


@dataclass(frozen=True)
class Cell:
    """A cell and its outcome. None leaves a part open; `error` is the name; `has_…` are substrings."""

    name: str
    code: str
    stdout: str | None = ""
    stderr: str | None = ""
    value: str | None = ""
    error: str = ""
    has_out: tuple[str, ...] = ()
    has_trace: tuple[str, ...] = ()
    displays: int | None = 0

    def check(self, result: CodeResult) -> None:
        told = "\n".join(result.error.traceback) if result.error else ""
        assert (result.error.name if result.error else "") == self.error, told or result
        for wanted, found in (
            (self.stdout, result.stdout),
            (self.stderr, result.stderr),
            (self.value, result.text),
        ):
            assert wanted is None or found == wanted, (wanted, found)
        for part in self.has_out:
            assert part in result.stdout + result.stderr + result.text, part
        for part in self.has_trace:
            assert part in told, (part, told)
        assert self.displays is None or len(result.displays) == self.displays
