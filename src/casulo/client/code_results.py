# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What became of a cell of code: rich values, changed files, the error, and all of it as one result."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casulo.model.errors import CasuloError

CODE_FAILED = "CLIENT::CODE_FAILED"
CHART = "application/vnd.casulo.chart+json"
_TEXT = "text/plain"
_BINARY = ("image/", "audio/", "video/")


@dataclass(frozen=True)
class Value:
    """A value in all its forms, by MIME type: text as str, JSON as data, pictures in base64.

    `display` tells that it was shown on the way; otherwise it is the value of the cell's last expression.
    """

    forms: Mapping[str, Any] = field(default_factory=dict)
    display: bool = False

    @property
    def text(self) -> str:
        """As plain text; empty when it has no such form."""
        return str(self.forms.get(_TEXT, ""))

    @property
    def html(self) -> str | None:
        """As HTML."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """As Markdown."""
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        """As an SVG picture."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """As a PNG picture."""
        return self.data("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """As a JPEG picture."""
        return self.data("image/jpeg")

    @property
    def json(self) -> Any:
        """As JSON data."""
        return self.forms.get("application/json")

    @property
    def chart(self) -> Mapping[str, Any] | None:
        """What a plot shows, as data: title, axes and series."""
        found = self.forms.get(CHART)
        return found if isinstance(found, dict) else None

    def data(self, mime: str) -> bytes | None:
        """One form as the bytes of a file."""
        found = self.forms.get(mime)
        if found is None:
            return None
        if isinstance(found, str):
            return base64.b64decode(found) if is_binary(mime) else found.encode()
        return json.dumps(found).encode()

    def _text(self, mime: str) -> str | None:
        found = self.forms.get(mime)
        return None if found is None else str(found)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """For notebooks, which show the richest form that they can."""
        return dict(self.forms)

    @staticmethod
    def read(event: Mapping[str, Any]) -> Value:
        """From a result event, where plain text has a short name."""
        given = event.get("results")
        forms = dict(given) if isinstance(given, dict) else {}
        if "text" in forms:
            forms = {_TEXT: forms.pop("text"), **forms}
        return Value(forms, bool(event.get("display")))


def is_binary(mime: str) -> bool:
    """Whether data of this type travels in base64."""
    return mime != "image/svg+xml" and (mime.startswith(_BINARY) or mime == "application/pdf")


@dataclass(frozen=True)
class ChangedFile:
    """A file below the working directory that the cell made or changed; `change` is created or modified."""

    path: str
    size: int
    mime: str
    change: str


@dataclass(frozen=True)
class CodeError:
    """Why a cell failed, in the words of its language.

    `reason` is empty when the code itself failed; else timeout, interrupted, or how its context ended: oom,
    signal (named in `signal`), exit, removed.
    """

    name: str
    value: str
    traceback: tuple[str, ...] = ()
    reason: str = ""
    signal: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name

    @property
    def context_died(self) -> bool:
        """Whether the context was lost with all that its cells left; the next run gets a fresh one."""
        return self.name in ("ContextDiedError", "CodeInterruptedError") or "context was ended" in self.value

    @staticmethod
    def read(event: Mapping[str, Any]) -> CodeError:
        """From an error event."""
        given = event.get("error")
        told = given if isinstance(given, dict) else {}
        return CodeError(
            name=str(told.get("ename") or "Error"),
            value=str(told.get("evalue") or ""),
            traceback=tuple(str(line) for line in told.get("traceback") or ()),
            reason=str(event.get("reason") or ""),
            signal=str(event.get("signal") or ""),
        )


class CodeFailed(CasuloError):
    """Raised by `CodeResult.check()`; `result` has everything."""

    def __init__(self, result: CodeResult, error: CodeError) -> None:
        super().__init__(f"the code failed: {error}", code=CODE_FAILED)
        self.result = result
        for line in error.traceback:
            self.add_note(line)


@dataclass(frozen=True)
class CodeResult:
    """A cell that ended. `fresh` tells that its context had lost what earlier cells left.

    `files_truncated` tells that there may be more changed files than are listed.
    """

    context_id: str
    values: tuple[Value, ...] = ()
    error: CodeError | None = None
    files: tuple[ChangedFile, ...] = ()
    execution_count: int | None = None
    duration_ms: int = 0
    fresh: bool = False
    files_truncated: bool = False
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end."""
        return self.error is None

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are no UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def value(self) -> Value | None:
        """The value of the last expression."""
        return next((value for value in reversed(self.values) if not value.display), None)

    @property
    def text(self) -> str:
        """The value of the last expression as text; empty without one."""
        return self.value.text if self.value else ""

    @property
    def displays(self) -> tuple[Value, ...]:
        """What was shown on the way: plots, and what the code displayed."""
        return tuple(value for value in self.values if value.display)

    def check(self) -> CodeResult:
        """The result itself, or CodeFailed when it is not ok."""
        if self.error is not None:
            raise CodeFailed(self, self.error)
        return self

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """For notebooks: the last value, else the last thing shown, else what was printed."""
        if self.values:
            return dict((self.value or self.values[-1]).forms)
        return {_TEXT: self.stdout + (f"\n{self.error}" if self.error else "")}
