# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The `[vault]` table: the key for credentials, where these may come from, and how they may be sent."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from casulo.model.secret import Secret

KEY_FILE = "vault-key"


class VaultSettings(BaseModel):
    """Nothing but inline values is accepted unless it is allowed here."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    key_file: Path | None = None
    """32 bytes in base64, readable by the server's user alone; `vault-key` in the data directory if not
    given. The first vault makes it."""

    key_env: str = Field(default="CASULO_VAULT_KEY", min_length=1)
    """A variable of the server that holds the key instead; it goes before the file."""

    env: tuple[str, ...] = ()
    """Variables of the server that may be the source of a credential. They are read when it starts."""

    files: tuple[Path, ...] = ()
    """Directories in which files may be; a change of a file takes effect within a second."""

    commands: tuple[tuple[str, ...], ...] = ()
    """Commands that may be run, each with all its arguments; they are compared as a whole."""

    command_ttl_seconds: float = Field(default=60, ge=1)
    """For so long what a command printed is taken to be true."""

    command_timeout_seconds: float = Field(default=10, gt=0)

    owners: tuple[str, ...] = ()
    """Owners of API keys who may use these sources besides the operator; `*` is everybody."""

    require_tls: bool = True
    """Refuse values that came over an unencrypted connection from another machine."""

    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Who may say by X-Forwarded-Proto that a request came over TLS, besides proxies on this machine."""

    extra_roots: Path | None = None
    """Certificates that are trusted besides the system's when a bound host is connected to."""

    environment: Mapping[str, Secret] = Field(default_factory=dict, exclude=True, repr=False)
    """The allowed variables, as they were at the start. Comes from the environment, never from a file."""

    @model_validator(mode="before")
    @classmethod
    def _no_values(cls, table: Any) -> Any:
        if isinstance(table, dict) and "environment" in table:
            raise ValueError("environment cannot be set; name variables with env")
        return table

    @model_validator(mode="after")
    def _absolute(self) -> VaultSettings:
        for path in self.files:
            if not path.is_absolute():
                raise ValueError(f"files: {path} does not begin at the root directory")
        for command in self.commands:
            if not command or not command[0].startswith("/"):
                raise ValueError("commands: each needs a program with its whole path")
        return self

    def with_environment(self, env: Mapping[str, str]) -> VaultSettings:
        """The same, with the variables that it names."""
        found = {name: Secret(env[name]) for name in (self.key_env, *self.env) if env.get(name)}
        return self.model_copy(update={"environment": found})
