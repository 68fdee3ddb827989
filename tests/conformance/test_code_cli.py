# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb code run` at a terminal: what is printed, what is saved, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import Server

RICH = """
print("printed")
class Rich:
    def _repr_html_(self): return "<b>rich</b>"
    def _repr_png_(self): return b"\\x89PNG picture"
    def _repr_json_(self): return {"a": 1}
    def __repr__(self): return "plain"
display(Rich())
open("made.csv", "w").write("a,b")
"""


@pytest.fixture
def osb(fake_server: Server):
    """The command with that server."""

    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "OPEN_SANDBOX_DOMAIN": fake_server.domain,
            "OPEN_SANDBOX_API_KEY": fake_server.api_key,
        }
        command = [sys.executable, "-m", "casulo.cli", "code", *words]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, env=environment, timeout=90
        )

    return run


def test_rich_results_are_saved(osb, tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(RICH)
    done = osb("run", str(tmp_path / "cell.py"), "--save-dir", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("printed\n") and "plain" in done.stdout
    assert "made.csv (3 bytes)" in done.stderr
    saved = {path.suffix: path for path in (tmp_path / "out").iterdir()}
    assert set(saved) == {".html", ".png", ".json"}
    assert saved[".png"].read_bytes() == b"\x89PNG picture" and saved[".html"].read_text() == "<b>rich</b>"
    assert json.loads(saved[".json"].read_text()) == {"a": 1}


def test_how_it_ends(osb, tmp_path: Path) -> None:
    failed = osb("run", "-c", "print(1)\n1/0")
    assert (failed.returncode, failed.stdout) == (1, "1\n")
    assert 'File "<cell 1>", line 2' in failed.stderr and "ZeroDivisionError" in failed.stderr
    assert osb("run", "-c", "while True: pass", "--timeout", "0.5").returncode == 124
    assert osb("run", "-", "-l", "bash", text="echo $((6 * 7))").stdout == "42\n"
    told = json.loads(osb("run", "-c", "6 * 7", "-o", "json").stdout)
    assert told["values"][0]["forms"]["text/plain"] == "42" and told["error"] is None
    unknown = osb("run", "-c", "select 1", "-l", "sql")
    assert unknown.returncode != 0 and "there are python, javascript" in unknown.stderr
    (tmp_path / "cell.cob").write_text("DISPLAY 1")
    nameless = osb("run", str(tmp_path / "cell.cob"))
    assert nameless.returncode == 2 and "no language is known for .cob" in nameless.stderr
    (tmp_path / "cell.cob").write_text("echo 6")
    assert osb("run", str(tmp_path / "cell.cob"), "-l", "bash").stdout == "6\n"
