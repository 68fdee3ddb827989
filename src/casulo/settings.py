# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server's one configuration: a TOML file, a few environment variables, safe defaults.

Each table's class lives next to the code that obeys it; this module only composes them. It is
imported by entry points and by nothing below them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from casulo.control.events import Kind
from casulo.control.settings import (
    AdmissionSettings,
    ControlSettings,
    PoolsSettings,
    RenewIntentSettings,
    SandboxSettings,
    SnapshotSettings,
    StoreSettings,
)
from casulo.control.vaultsettings import VaultSettings
from casulo.images.settings import ImagesSettings
from casulo.model.draft import nearest
from casulo.model.errors import CasuloError, Code, InvalidRequest
from casulo.model.sandbox import MIN_TIMEOUT_SECONDS
from casulo.network.egress.settings import EgressSettings
from casulo.runtimes.docker.settings import DockerSettings
from casulo.runtimes.local.settings import LocalSettings
from casulo.runtimes.microvm.settings import MicrovmSettings

ENV_CONFIG = "SANDBOX_CONFIG_PATH"
ENV_API_KEY = "OPENSANDBOX_SERVER_API_KEY"
ENV_INSECURE = "OPENSANDBOX_INSECURE_SERVER"
ENV_HOME = "CASULO_HOME"
ENV_DOCKER_HOST = "DOCKER_HOST"
ENV_POSTGRESQL = "OPENSANDBOX_STORE_POSTGRESQL_DSN"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(_Table):
    """`[server]`: where it listens, who may call, where it keeps its data."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_key: str | None = Field(default=None, repr=False)
    """None lets the first start write one into the data directory."""

    insecure: bool = False
    """Accept calls without a key. Never on by itself."""

    data_dir: Path = Path("~/.casulo")
    max_sandbox_timeout_seconds: int | None = Field(default=None, ge=MIN_TIMEOUT_SECONDS)
    eip: str | None = None
    """The address that endpoints name instead of the one the caller used."""


class ProxySettings(_Table):
    """`[proxy]`: limits of forwarded requests."""

    request_timeout_seconds: float = Field(default=60, gt=0)
    connect_timeout_seconds: float = Field(default=5, gt=0)
    max_connections: int = Field(default=256, ge=1)


class RuntimeSettings(_Table):
    """`[runtime]`: which ways to run a sandbox this server offers."""

    enabled: tuple[str, ...] = Field(default=("local",), min_length=1)
    default: str = "local"

    @model_validator(mode="before")
    @classmethod
    def _default_follows(cls, table: Any) -> Any:
        """A server with one runtime need not name it twice."""
        if isinstance(table, dict) and "default" not in table and table.get("enabled"):
            return {**table, "default": table["enabled"][0]}
        return table

    @model_validator(mode="after")
    def _default_is_enabled(self) -> Self:
        if self.default not in self.enabled:
            raise ValueError(f"default {self.default!r} is not among the enabled runtimes")
        return self


class StorageSettings(_Table):
    """`[storage]`: what of the host a sandbox may mount. Nothing, unless said here."""

    allowed_host_paths: tuple[Path, ...] = ()


class LogSettings(_Table):
    """`[log]`: how much the server says, and for whom."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class AuditSettings(_Table):
    """`[audit]`: whether changes and refusals are recorded in the data directory."""

    enabled: bool = True
    max_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """A file of this size is set aside, and the chain goes on in a new one."""

    keep_files: int | None = Field(default=None, ge=0)
    """So many of those set aside are kept; all, if this is not said."""


class OtelSettings(_Table):
    """`[otel]`: traces of starts, sent over OTLP/HTTP. Needs the extra `casulo[otel]`."""

    enabled: bool = False
    endpoint: str = Field(default="http://127.0.0.1:4318", pattern="^https?://")
    service_name: str = "casulo"
    export_interval_millis: int = Field(default=5000, ge=1)


class WebhookSettings(_Table):
    """`[[webhooks]]`: who is told what."""

    url: str = Field(pattern="^https?://")
    secret: str = Field(min_length=16, repr=False)
    events: tuple[Kind, ...] = ()
    """Empty: all."""

    timeout_seconds: float = Field(default=10, gt=0)
    attempts: int = Field(default=8, ge=1)
    """With pauses of 1, 2, 4, … seconds, at most five minutes."""


class Settings(_Table):
    """The whole configuration, frozen after it was read."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    proxy: ProxySettings = ProxySettings()
    sandbox: SandboxSettings = SandboxSettings()
    admission: AdmissionSettings = AdmissionSettings()
    pools: PoolsSettings = PoolsSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    local: LocalSettings = LocalSettings()
    docker: DockerSettings = DockerSettings()
    microvm: MicrovmSettings = MicrovmSettings()
    images: ImagesSettings = ImagesSettings()
    egress: EgressSettings = EgressSettings()
    vault: VaultSettings = VaultSettings()
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()
    audit: AuditSettings = AuditSettings()
    otel: OtelSettings = OtelSettings()
    webhooks: tuple[WebhookSettings, ...] = ()
    renew_intent: RenewIntentSettings = RenewIntentSettings()
    snapshot: SnapshotSettings = SnapshotSettings()

    @classmethod
    def load(cls, path: Path | None, env: Mapping[str, str]) -> Settings:
        """Read `path`, else the file that `env` names, else ~/.sandbox.toml, else use the defaults.

        Raises InvalidRequest saying which key of which file is wrong and what was probably meant.
        """
        file = _find(path, env)
        return cls.parse(_read(file), env, source=str(file) if file else "the environment")

    @classmethod
    def parse(cls, tables: Mapping[str, Any], env: Mapping[str, str], *, source: str) -> Settings:
        """Settings from parsed tables, overridden by `env`; `source` is named in errors."""
        try:
            read = cls.model_validate(_overridden(tables, env))
            return read.model_copy(update={"vault": read.vault.with_environment(env)})
        except ValidationError as error:
            raise _explained(error, source) from None
        except CasuloError as error:
            raise _wrong(f"{source}: {error.message}", error.hint) from None

    @property
    def data_dir(self) -> Path:
        """Where everything of this server lives, as an absolute path."""
        return self.server.data_dir.expanduser().absolute()

    @property
    def images_dir(self) -> Path:
        """Where images are kept."""
        return self.images.place(self.data_dir)

    @property
    def control(self) -> ControlSettings:
        """The part that the lifecycle service obeys."""
        return ControlSettings(
            sandbox=self.sandbox,
            admission=self.admission,
            pools=self.pools,
            data_dir=self.data_dir,
            store=self.store,
            renew_intent=self.renew_intent,
            snapshot=self.snapshot,
            max_sandbox_timeout_seconds=self.server.max_sandbox_timeout_seconds,
            default_policy=self.egress.default_policy,
            vault=self.vault,
        )


def _find(path: Path | None, env: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path.expanduser()
    if env.get(ENV_CONFIG):
        return Path(env[ENV_CONFIG]).expanduser()
    usual = Path(env.get("HOME", "~")).expanduser() / ".sandbox.toml"
    return usual if usual.is_file() else None


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(f"cannot read {file}: {error.strerror}", "name another file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"{file} is not valid TOML: {error}") from None


def _overridden(tables: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    server: dict[str, Any] = {}
    if env.get(ENV_API_KEY):
        server["api_key"] = env[ENV_API_KEY]
    if env.get(ENV_INSECURE) == "YES":
        server["insecure"] = True
    if env.get(ENV_HOME):
        server["data_dir"] = env[ENV_HOME]
    engine = env.get(ENV_DOCKER_HOST)
    images = {"docker_host": engine} if engine else {}
    docker = {"host": engine} if engine else {}
    store = {"url": env[ENV_POSTGRESQL]} if env.get(ENV_POSTGRESQL) else {}
    changed = dict(tables)
    for name, changes in (("server", server), ("store", store), ("images", images), ("docker", docker)):
        given = tables.get(name, {})
        if changes and isinstance(given, Mapping):  # else validation says what is wrong with it
            changed[name] = {**given, **changes}
    return changed


def _explained(error: ValidationError, source: str) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    where = tuple(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys_of(where[:-1])
        return _wrong(f"{source}: unknown key {_dotted(where)}", nearest(where[-1], known))
    said = first["msg"].removeprefix("Value error, ")
    return _wrong(f"{source}: {_dotted(where)}: {said}")


def _keys_of(where: Iterable[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in where:
        field = model.model_fields.get(part)  # else it is a name in a table of tables
        for inner in (field.annotation, *get_args(field.annotation)) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return list(model.model_fields)


def _dotted(where: tuple[str, ...]) -> str:
    if len(where) < 2:
        return f"[{where[0]}]" if where else "the configuration"
    return f"[{where[0]}] {'.'.join(where[1:])}"


def _wrong(message: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(message, code=Code.INVALID_PARAMETER, hint=hint)
