# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where this machine gets its Debian packages: an image is built from the same place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

APT = Path("/etc/apt")
_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


@dataclass(frozen=True)
class Origin:
    """One line of sources.list. `options` is what stands in the brackets."""

    uri: str
    suite: str
    components: str
    options: str = ""

    def __str__(self) -> str:
        options = f"[{self.options}] " if self.options else ""
        return f"deb {options}{self.uri} {self.suite} {self.components}"


def for_suite(suite: str, apt: Path = APT) -> str:
    """A sources.list for `suite`: this machine's lines for it and its updates, or else its first mirror.

    Empty when this machine has no sources of its own.
    """
    known = list(_origins(apt))
    found = [o for o in known if o.suite == suite or o.suite.startswith((f"{suite}-", f"{suite}/"))]
    if not found and known:
        found = [Origin(known[0].uri, suite, known[0].components, known[0].options)]
    return "".join(f"{origin}\n" for origin in found)


def _origins(apt: Path) -> Iterator[Origin]:
    parts = apt / "sources.list.d"
    lists = [apt / "sources.list", *sorted(parts.glob("*.list"))]
    for path in lists:
        if path.is_file():
            yield from _lines(path.read_text(errors="replace"))
    for path in sorted(parts.glob("*.sources")):
        yield from _stanzas(path.read_text(errors="replace"))


def _lines(text: str) -> Iterator[Origin]:
    for line in text.splitlines():
        found = _LINE.fullmatch(line.partition("#")[0].strip())
        if found:
            options = (found["options"] or "").strip()
            yield Origin(found["uri"], found["suite"], found["components"].strip(), options)


def _stanzas(text: str) -> Iterator[Origin]:
    """The form of *.sources: paragraphs of `Key: value`, lines that begin with a blank continue."""
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in (line for line in paragraph.splitlines() if not line.startswith("#")):
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
                continue
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
        if fields.get("enabled", "yes").lower() != "no" and "deb" in fields.get("types", "").split():
            yield from _of_fields(fields)


def _of_fields(fields: dict[str, str]) -> Iterator[Origin]:
    signed = fields.get("signed-by", "")
    options = f"signed-by={signed}" if signed.startswith("/") else ""  # a key in the text needs no path
    for uri in fields.get("uris", "").split():
        for suite in fields.get("suites", "").split():
            yield Origin(uri, suite, fields.get("components", ""), options)
