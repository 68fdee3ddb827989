# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where values come from: only what the configuration names, always as it is now, and never half."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from casulo.control.sources import Sources
from casulo.control.vaultsettings import VaultSettings
from casulo.model.errors import CasuloError, Code, Forbidden
from casulo.model.keys import OPERATOR, Caller, Scope
from casulo.model.secret import Secret
from casulo.model.vault import Source

TENANT = Caller("key", "team", frozenset({Scope.CREATE}))


def file(path: Path) -> Source:
    return Source("file", file=str(path))


def refused(sources: Sources, source: Source, caller: Caller = OPERATOR) -> None:
    with pytest.raises(Forbidden) as caught:
        sources.check(source, caller)
    assert caught.value.code == Code.VAULT_SOURCE


def failed(sources: Sources, source: Source) -> str:
    with pytest.raises(CasuloError) as caught:
        sources.read(source)
    return str(caught.value)


def test_nothing_is_allowed_unless_it_is_named(tmp_path: Path) -> None:
    sources = Sources(VaultSettings())
    for source in (Source("env", env="HOME"), file(tmp_path / "x"), Source("exec", command=("/bin/true",))):
        refused(sources, source)
        failed(sources, source)
    sources.check(Source("inline", Secret("x")), TENANT)


def test_variables(tmp_path: Path) -> None:
    settings = VaultSettings(env=("TOKEN", "UNSET")).with_environment({"TOKEN": "value", "OTHER": "no"})
    sources = Sources(settings)
    assert sources.read(Source("env", env="TOKEN")).reveal() == "value"
    assert "UNSET" in failed(sources, Source("env", env="UNSET"))
    refused(sources, Source("env", env="OTHER"))


def test_files_are_read_as_they_are_now(tmp_path: Path) -> None:
    path, sources = tmp_path / "token", Sources(VaultSettings(files=(tmp_path,)))
    path.write_text("first\n")
    assert sources.read(file(path)).reveal() == "first"
    draft = tmp_path / "draft"
    draft.write_text("second\r\n")
    draft.rename(path)
    assert sources.read(file(path)).reveal() == "second"
    path.unlink()
    assert sources.read(file(path)).reveal() == "second"
    assert "cannot be read" in failed(Sources(VaultSettings(files=(tmp_path,))), file(path))


def test_files_outside_are_refused_however_they_are_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    inside.mkdir()
    outside.mkdir()
    (outside / "token").write_text("secret")
    (inside / "link").symlink_to(outside / "token")
    (inside / "real").write_text("fine")
    (inside / "within").symlink_to("real")
    os.mkfifo(inside / "pipe")
    sources = Sources(VaultSettings(files=(inside,)))
    for name in (
        outside / "token",
        inside / "link",
        inside / ".." / "inside-not" / "token",
        Path("/etc/shadow"),
    ):
        refused(sources, file(name))
    assert sources.read(file(inside / "within")).reveal() == "fine"
    assert "no regular file" in failed(sources, file(inside / "pipe"))
    assert failed(sources, file(inside))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"a\0b", b"x" * ((64 << 10) + 1)])
def test_what_is_no_value(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    failed(Sources(VaultSettings(files=(tmp_path,))), file(tmp_path / "token"))


def test_commands_are_compared_whole_and_run_without_our_environment(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", "echo ${CASULO_TEST_SECRET:-none}; echo hidden >&2")
    sources = Sources(VaultSettings(commands=(command,)))
    os.environ["CASULO_TEST_SECRET"] = "x"
    try:
        assert sources.read(Source("exec", command=command)).reveal() == "none"
    finally:
        del os.environ["CASULO_TEST_SECRET"]
    refused(sources, Source("exec", command=(*command, "more")))
    refused(sources, Source("exec", command=command[:2]))


def test_commands_are_run_again_after_their_time(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    command = ("/bin/sh", "-c", f"echo >> {counter}; wc -l < {counter}")
    settings = VaultSettings(commands=(command,), command_ttl_seconds=1)
    sources, source = Sources(settings), Source("exec", command=command)
    assert sources.read(source).reveal() == sources.read(source).reveal() == "1"
    time.sleep(1.1)
    assert sources.read(source).reveal() == "2"


@pytest.mark.parametrize("script", ["exit 3", "sleep 60", "printf ''"])
def test_commands_that_fail_tell_nothing_of_their_output(script: str) -> None:
    command = ("/bin/sh", "-c", f"printf s3cr3t >&2; {script}")
    sources = Sources(VaultSettings(commands=(command,), command_timeout_seconds=0.3))
    assert "s3cr3t" not in failed(sources, Source("exec", command=command))


def test_who_may_use_them() -> None:
    source = Source("env", env="TOKEN")
    for owners, caller, allowed in (
        ((), OPERATOR, True),
        ((), TENANT, False),
        (("team",), TENANT, True),
        (("other",), TENANT, False),
        (("*",), TENANT, True),
    ):
        sources = Sources(VaultSettings(env=("TOKEN",), owners=owners))
        if allowed:
            sources.check(source, caller)
        else:
            refused(sources, source, caller)


@pytest.mark.parametrize(
    "wrong", [{"files": ["x"]}, {"commands": [["true"]]}, {"commands": [[]]}, {"environment": {}}]
)
def test_settings_that_are_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        VaultSettings.model_validate(wrong)
