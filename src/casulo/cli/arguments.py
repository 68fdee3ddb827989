# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How arguments are written on the command line, and the options that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from casulo.client.volumes import Volume as ClientVolume

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_UNIT_SECONDS = (86400, 3600, 60, 1, 0.001)


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"


def duration(given: str | float) -> float:
    """Seconds from `90`, `90s`, `500ms`, `10m`, `1h30m` or `2d`; defaults come as numbers."""
    text = str(given).strip()
    try:
        return float(text)
    except ValueError:
        match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write for example 30s, 10m or 1h30m")
    parts = zip(match.groups(), _UNIT_SECONDS, strict=True)
    return sum(float(value) * unit for value, unit in parts if value)


def lifetime(text: str) -> float:
    """A duration; `none` is 0 and stands for no end."""
    return 0.0 if text.strip().lower() == "none" else duration(text)


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """From repeated KEY=VALUE."""
    found = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def shell_text(words: Sequence[str]) -> str:
    """One word is taken as shell text; several are quoted, so that the shell sees the same words."""
    return words[0] if len(words) == 1 else shlex.join(words)


def volumes(items: Sequence[str] | None) -> list[ClientVolume]:
    """From repeated SOURCE:MOUNT_PATH[:ro]."""
    from casulo.client.volumes import Volume as ClientVolume

    try:
        return [ClientVolume.parse(item) for item in items or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--volume") from None


# Every command takes it, and State.of reads it from the command's context.
Output = Annotated[
    Format | None,
    typer.Option("-o", "--output", help="Print results as a table, as JSON, or as they are (raw)."),
]
SandboxId = Annotated[str, typer.Argument(help="Id of the sandbox.", show_default=False)]
CommandId = Annotated[str, typer.Argument(help="Id of the command.", show_default=False)]
Words = Annotated[list[str], typer.Argument(help="What to run, after `--`.", show_default=False)]
Workdir = Annotated[str | None, typer.Option("-w", "--workdir", help="Directory to run in.")]
Limit = Annotated[
    float | None,
    typer.Option(
        "-t", "--timeout", parser=duration, metavar="DURATION", help="Kill it after this long: 30s, 5m."
    ),
]
Env = Annotated[
    list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="Environment variable.")
]
Resource = Annotated[
    list[str] | None,
    typer.Option("--resource", metavar="KEY=VALUE", help="Limit, such as cpu=500m or memory=1Gi."),
]
Volume = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="SOURCE:PATH[:ro]",
        help="Mount a named volume, a path of the host, or bucket://NAME@ENDPOINT.",
    ),
]
Isolation = Annotated[str | None, typer.Option("--isolation", help="auto, container, gvisor or microvm.")]
Runtime = Annotated[str | None, typer.Option("--runtime", help="One of the server's runtimes, as local.")]
