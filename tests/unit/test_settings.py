# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The configuration: safe without a file, and plain about what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from casulo.model.errors import InvalidRequest
from casulo.settings import Settings


def load(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    file = tmp_path / "casulo.toml"
    file.write_text(text)
    return Settings.load(file, env or {})


def test_the_defaults_are_safe(tmp_path: Path) -> None:
    settings = Settings.load(None, {"HOME": str(tmp_path)})
    assert settings.server.host == "127.0.0.1"
    assert settings.server.api_key is None and not settings.server.insecure
    assert settings.runtime.enabled == ("local",) and settings.runtime.default == "local"
    assert settings.storage.allowed_host_paths == ()
    assert not settings.renew_intent.enabled
    assert settings.data_dir.is_absolute()


def test_a_file_and_the_environment_are_combined(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[server]\nport = 9\napi_key = "file"\n[sandbox]\ndefault_cpu = "2"\nmax_concurrent_starts = 9\n',
        {
            "OPENSANDBOX_SERVER_API_KEY": "env",
            "OPENSANDBOX_INSECURE_SERVER": "YES",
            "CASULO_HOME": str(tmp_path / "data"),
        },
    )
    assert (settings.server.port, settings.server.api_key, settings.server.insecure) == (9, "env", True)
    assert settings.data_dir == tmp_path / "data"
    assert settings.control.defaults.cpu == "2"
    assert settings.control.sandbox.max_concurrent_starts == 9


@pytest.mark.parametrize("value", ["yes", "1", "true", ""])
def test_only_the_exact_word_makes_a_server_insecure(tmp_path: Path, value: str) -> None:
    assert not load(tmp_path, "", {"OPENSANDBOX_INSECURE_SERVER": value}).server.insecure


def test_the_file_is_looked_for_in_order(tmp_path: Path) -> None:
    named, usual = tmp_path / "named.toml", tmp_path / ".sandbox.toml"
    usual.write_text("[server]\nport = 1\n")
    named.write_text("[server]\nport = 2\n")
    env = {"HOME": str(tmp_path)}
    assert Settings.load(None, env).server.port == 1
    assert Settings.load(None, {**env, "SANDBOX_CONFIG_PATH": str(named)}).server.port == 2
    assert Settings.load(usual, {**env, "SANDBOX_CONFIG_PATH": str(named)}).server.port == 1


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[server]\nprot = 1\n", "unknown key [server] prot", "'port'"),
        ("[sevrer]\nport = 1\n", "unknown key [sevrer]", "'server'"),
        ("[sandbox]\ndefault_memroy = '1Gi'\n", "[sandbox] default_memroy", "'default_memory'"),
        ("[local]\nslot = 1\n", "[local] slot", "'slots'"),
        ("[images]\nauthfile = 'x'\n", "[images] authfile", "'auth_file'"),
        ("[images.registries.'r:1']\nusernme = 'x'\n", "[images] registries.r:1.usernme", "'username'"),
        ("[server]\nport = 70000\n", "[server] port", ""),
        ("[sandbox]\ndefault_memory = 'lots'\n", "'lots'", ""),
        ("[runtime]\nenabled = ['local']\ndefault = 'fake'\n", "'fake' is not among", ""),
        ("[runtime]\nenabled = []\n", "[runtime] enabled", ""),
        ("server = 1\n", "[server]", ""),
        ("[server\n", "not valid TOML", ""),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        load(tmp_path, text)
    assert message in failure.value.message
    assert "casulo.toml" in failure.value.message
    assert hint in failure.value.hint


def test_a_missing_file_is_an_error_when_it_was_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        Settings.load(tmp_path / "absent.toml", {})


def test_one_enabled_runtime_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, "[runtime]\nenabled = ['fake', 'local']\n").runtime.default == "fake"


def test_settings_do_not_change_after_they_were_read(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    with pytest.raises(ValidationError):
        settings.server.port = 1  # type: ignore[misc]
