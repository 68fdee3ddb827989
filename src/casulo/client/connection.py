# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which server to talk to, and with which key.

Each value is looked for in this order: the explicit argument, the environment, the config file,
and for the address and the key what a server on this machine wrote into its home; at last localhost:8080.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from casulo.model.errors import Code, InvalidRequest

DEFAULT_DOMAIN = "localhost:8080"
DEFAULT_REQUEST_TIMEOUT = 30.0
CONFIG_FILE = "~/.opensandbox/config.toml"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}


@dataclass(frozen=True)
class Connection:
    """A resolved address. `source` says where it came from; `chosen` that somebody named it on purpose."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    request_timeout: float = DEFAULT_REQUEST_TIMEOUT
    use_server_proxy: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    source: str = "argument"
    chosen: bool = True

    @property
    def scheme(self) -> str:
        """http or https; the endpoints of sandboxes are reached the same way."""
        return urlsplit(self.url).scheme

    @staticmethod
    def resolve(
        *,
        domain: str | None = None,
        api_key: str | None = None,
        protocol: str | None = None,
        request_timeout: float | None = None,
        use_server_proxy: bool | None = None,
        headers: Mapping[str, str] | None = None,
        config_file: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Connection:
        """Fill in what was not given from the environment, the config file and the local server."""
        env = os.environ if env is None else env
        given = {
            "domain": domain,
            "api_key": api_key,
            "protocol": protocol,
            "request_timeout": request_timeout,
            "use_server_proxy": use_server_proxy,
        }
        home = Home(casulo_home(env))
        sources = [
            ("argument", given),
            ("environment", _from_env(env)),
            (str(_config_path(config_file)), read_config(config_file).get("connection", {})),
            (str(home.server_file), home.address()),
            ("default", {"domain": DEFAULT_DOMAIN, "protocol": "http"}),
        ]
        return _merge(sources, home, headers or {})


class Home:
    """The files that a server on this machine leaves for its clients."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server_file = path / "server.json"
        self.key_file = path / "api-key"

    def address(self) -> dict[str, Any]:
        """The address of the running server, or nothing."""
        server = self.server()
        return {"domain": server["url"]} if server else {}

    def server(self) -> dict[str, Any] | None:
        """What the server wrote about itself; None when there is none or its process is gone."""
        try:
            found = json.loads(self.server_file.read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or not isinstance(found.get("url"), str):
            return None
        return found if _alive(found.get("pid")) else None

    def key_for(self, url: str) -> str | None:
        """The local server's key, but only for the local server: it is sent to nobody else."""
        server = self.server()
        known = server["url"] if server else f"http://{DEFAULT_DOMAIN}"
        if _place(known) != _place(url):
            return None
        try:
            return self.key_file.read_text().strip() or None
        except OSError:
            return None


def casulo_home(env: Mapping[str, str]) -> Path:
    """Where this machine's own server keeps its data."""
    return Path(env.get("CASULO_HOME") or "~/.casulo").expanduser()


def read_config(path: str | Path | None = None) -> dict[str, Any]:
    """The client's config file as it stands; empty when there is none at the default place."""
    place = _config_path(path)
    if path is None and not place.exists():
        return {}
    import tomllib  # not before it is needed: most machines have no such file

    try:
        return tomllib.loads(place.read_text())
    except FileNotFoundError:
        raise InvalidRequest(f"no config file at {place}", code=Code.INVALID_PARAMETER) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"config file {place} cannot be read: {error}", code=Code.INVALID_PARAMETER
        ) from error


def truth(name: str, value: object) -> bool:
    """A yes or no as people write it in environments and files."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise InvalidRequest(
        f"{name}: {value!r} is neither yes nor no", code=Code.INVALID_PARAMETER, hint="write true or false"
    )


def _config_path(path: str | Path | None) -> Path:
    return Path(path or CONFIG_FILE).expanduser()


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "domain": "OPEN_SANDBOX_DOMAIN",
        "api_key": "OPEN_SANDBOX_API_KEY",
        "protocol": "OPEN_SANDBOX_PROTOCOL",
        "request_timeout": "OPEN_SANDBOX_REQUEST_TIMEOUT",
        "use_server_proxy": "OPEN_SANDBOX_USE_SERVER_PROXY",
    }
    return {key: env[name] for key, name in names.items() if env.get(name)}


def _merge(
    sources: list[tuple[str, Mapping[str, Any]]], home: Home, headers: Mapping[str, str]
) -> Connection:
    def first(key: str) -> tuple[Any, str]:
        for name, values in sources:
            if values.get(key) is not None:
                return values[key], name
        return None, "default"

    domain, source = first("domain")
    url = _url(str(domain), str(first("protocol")[0]))
    key = first("api_key")[0]
    return Connection(
        url=url,
        api_key=str(key) if key is not None else home.key_for(url),
        request_timeout=_seconds(first("request_timeout")[0]),
        use_server_proxy=truth("use_server_proxy", first("use_server_proxy")[0] or False),
        headers=headers,
        source=source,
        chosen=source not in (str(home.server_file), "default"),
    )


def _url(domain: str, protocol: str) -> str:
    """`domain` may bring its own scheme and path; bare IPv6 literals get their brackets."""
    text = domain.strip()
    if "://" not in text:
        if text.count(":") > 1 and not text.startswith("["):
            text = f"[{text}]"
        text = f"{protocol}://{text}"
    if not _is_address(text):
        raise InvalidRequest(
            f"{domain!r} is not the address of a server",
            code=Code.INVALID_PARAMETER,
            hint="write host:port, or a URL that begins with http:// or https://",
        )
    return text.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _seconds(value: object) -> float:
    if value is None:
        return DEFAULT_REQUEST_TIMEOUT
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise InvalidRequest(
            f"request_timeout: {value!r} is not a number of seconds above zero", code=Code.INVALID_PARAMETER
        )
    return seconds


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ("local" if host in _LOCAL_NAMES else host, port)


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
