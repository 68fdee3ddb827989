# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How arguments are read."""

from __future__ import annotations

import pytest
import typer

from casulo.cli.arguments import duration, lifetime, pairs, shell_text
from casulo.cli.config import TEMPLATE, with_value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("30s", 30), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "m", "1m1h", "-"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration(text)


def test_no_end() -> None:
    assert lifetime("none") == lifetime("None ") == 0.0
    assert lifetime("5m") == 300.0


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "--env") == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("novalue", "=x"):
        with pytest.raises(typer.BadParameter):
            pairs([wrong], "--env")


def test_one_word_is_shell_text_several_are_quoted() -> None:
    assert shell_text(["echo $HOME"]) == "echo $HOME"
    assert shell_text(["echo", "$HOME", "a b"]) == "echo '$HOME' 'a b'"


def test_setting_a_value_keeps_the_rest_of_the_file() -> None:
    once = with_value(TEMPLATE, "connection", "domain", '"host:1"')
    assert once.replace('domain = "host:1"\n', "", 1) == TEMPLATE
    assert with_value(once, "connection", "domain", '"host:2"') == once.replace("host:1", "host:2")
    assert with_value("", "a", "b", "1") == "[a]\nb = 1\n"
    assert with_value("[x]\ny = 1\n", "a", "b", "1") == "[x]\ny = 1\n\n[a]\nb = 1\n"
