# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where the client finds its server, and to whom it shows which key."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from casulo.client.connection import Connection, truth
from casulo.model.errors import InvalidRequest


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty machine: no config file, nothing in Casulo's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"CASULO_HOME": str(tmp_path / "casulo")}


def running_server(env: dict[str, str], url: str, pid: int | None = None) -> None:
    home = Path(env["CASULO_HOME"])
    home.mkdir()
    (home / "api-key").write_text("local-key\n")
    (home / "server.json").write_text(json.dumps({"url": url, "pid": pid or os.getpid()}))


def config_file(text: str) -> None:
    place = Path("~/.opensandbox/config.toml").expanduser()
    place.parent.mkdir()
    place.write_text(text)


def test_an_empty_machine_means_the_default(env: dict[str, str]) -> None:
    found = Connection.resolve(env=env)
    assert (found.url, found.api_key, found.chosen) == ("http://localhost:8080", None, False)


def test_a_running_server_is_found_with_its_key(env: dict[str, str]) -> None:
    running_server(env, "http://127.0.0.1:9999")
    found = Connection.resolve(env=env)
    assert (found.url, found.api_key, found.chosen) == ("http://127.0.0.1:9999", "local-key", False)


def test_the_note_of_a_dead_server_is_ignored(env: dict[str, str]) -> None:
    running_server(env, "http://127.0.0.1:9999", pid=2**22 + 1)
    assert Connection.resolve(env=env).url == "http://localhost:8080"


def test_arguments_win_over_environment_over_file_over_local_server(env: dict[str, str]) -> None:
    running_server(env, "http://127.0.0.1:9999")
    config_file('[connection]\ndomain = "file:1"\nrequest_timeout = 7\nuse_server_proxy = true\n')
    env["OPEN_SANDBOX_DOMAIN"] = "env:2"
    found = Connection.resolve(env=env)
    assert (found.url, found.request_timeout, found.use_server_proxy) == ("http://env:2", 7.0, True)
    assert (found.source, found.chosen) == ("environment", True)
    assert Connection.resolve(domain="arg:3", env=env).url == "http://arg:3"
    del env["OPEN_SANDBOX_DOMAIN"]
    assert Connection.resolve(env=env).url == "http://file:1"


def test_the_local_key_goes_to_the_local_server_only(env: dict[str, str]) -> None:
    running_server(env, "http://127.0.0.1:9999")
    assert Connection.resolve(domain="localhost:9999", env=env).api_key == "local-key"
    assert Connection.resolve(domain="localhost:9998", env=env).api_key is None
    assert Connection.resolve(domain="example.test:9999", env=env).api_key is None
    assert Connection.resolve(domain="example.test:9999", api_key="mine", env=env).api_key == "mine"


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Connection("http://x", api_key="secret"))


@pytest.mark.parametrize(
    ("domain", "protocol", "url"),
    [
        ("host:1", None, "http://host:1"),
        ("host:1", "https", "https://host:1"),
        ("https://host/prefix/", "http", "https://host/prefix"),
        ("::1", None, "http://[::1]"),
        ("[::1]:8080", None, "http://[::1]:8080"),
    ],
)
def test_addresses(env: dict[str, str], domain: str, protocol: str | None, url: str) -> None:
    assert Connection.resolve(domain=domain, protocol=protocol, env=env).url == url


@pytest.mark.parametrize("domain", ["ftp://host", "http://", "://x", "host:port", "host:99999"])
def test_what_is_no_address_is_refused(env: dict[str, str], domain: str) -> None:
    with pytest.raises(InvalidRequest, match="not the address of a server"):
        Connection.resolve(domain=domain, env=env)


@pytest.mark.parametrize("value", ["zero", "0", "-1"])
def test_bad_timeouts_are_refused(env: dict[str, str], value: str) -> None:
    env["OPEN_SANDBOX_REQUEST_TIMEOUT"] = value
    with pytest.raises(InvalidRequest, match="request_timeout"):
        Connection.resolve(env=env)


def test_a_named_config_file_must_exist(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no config file"):
        Connection.resolve(config_file=tmp_path / "none.toml", env=env)


def test_a_broken_config_file_is_named(env: dict[str, str]) -> None:
    config_file("[connection\n")
    with pytest.raises(InvalidRequest, match=r"config\.toml"):
        Connection.resolve(env=env)


def test_truth() -> None:
    assert [truth("x", v) for v in ("true", "1", "Yes", "off", "0", True)] == [True] * 3 + [False] * 2 + [
        True
    ]
    with pytest.raises(InvalidRequest, match="neither yes nor no"):
        truth("x", "maybe")
