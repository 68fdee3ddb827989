# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Settings of the lifecycle service: the `[sandbox]`, `[snapshot]` and `[renew_intent]` tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from casulo.control.hostroom import Room
from casulo.control.vaultsettings import VaultSettings
from casulo.model import quantities
from casulo.model.draft import Defaults
from casulo.model.policy import NetworkPolicy
from casulo.model.pool import MOST_MEMBERS, Capacity, Pool, Template


class SandboxSettings(BaseModel):
    """What a sandbox gets when its creator does not say, and how starts and stops are paced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default_cpu: str = "1"
    default_memory: str = "512Mi"
    default_pids: int = Field(default=512, ge=1)
    default_shm: str = "256Mi"

    stop_grace_seconds: float = Field(default=5, ge=0, le=600)
    """Time between asking the entrypoint to end and killing it."""

    start_timeout_seconds: float = Field(default=30, gt=0)
    """Limit of one start, not counting the wait for its turn."""

    max_concurrent_starts: int = Field(default=4, ge=1)
    """For each runtime. More creates than this wait in a queue, in turns among the holders of keys."""

    @model_validator(mode="after")
    def _quantities(self) -> Self:
        quantities.cpu_millis(self.default_cpu)
        quantities.whole_bytes("default_memory", self.default_memory)
        quantities.whole_bytes("default_shm", self.default_shm)
        return self

    def defaults(self, max_timeout_seconds: int | None = None) -> Defaults:
        """The same as the model knows it."""
        return Defaults(
            cpu=self.default_cpu,
            memory=self.default_memory,
            pids=self.default_pids,
            shm=self.default_shm,
            max_timeout_seconds=max_timeout_seconds,
        )


class AdmissionSettings(BaseModel):
    """`[admission]`: how long a start may wait for its turn, and what of the machine must stay free."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_wait_seconds: float = Field(default=25, gt=0)
    """Then the caller is told to come again later; clients give up after 30 s by themselves."""

    max_concurrent_starts: Mapping[str, PositiveInt] = Field(default_factory=dict)
    """By runtime, where it shall differ from `[sandbox] max_concurrent_starts`."""

    min_free_memory: str = "256Mi"
    min_free_disk: str = "512Mi"
    min_free_pids: int = Field(default=512, ge=0)

    @property
    def least(self) -> Room:
        """What must stay free, in numbers."""
        return Room(
            memory=quantities.whole_bytes("min_free_memory", self.min_free_memory),
            disk=quantities.whole_bytes("min_free_disk", self.min_free_disk),
            pids=self.min_free_pids,
        )

    @model_validator(mode="after")
    def _quantities(self) -> Self:
        assert self.least
        return self


class RenewIntentSettings(BaseModel):
    """Whether proxied traffic may extend a sandbox's life, for sandboxes that ask for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    min_interval_seconds: float = Field(default=60, ge=0)
    """At most one extension of the same sandbox in this time."""


class SnapshotSettings(BaseModel):
    """The `[snapshot]` table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    take_timeout_seconds: float = Field(default=600, gt=0)
    """A snapshot that is not done by then has failed, and its sandbox goes on."""


class PoolSettings(BaseModel):
    """One pool of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str
    resources: Mapping[str, str] = Field(default_factory=dict)
    extensions: Mapping[str, str] = Field(default_factory=dict)
    env: Mapping[str, str] = Field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    min: int = Field(default=1, ge=0, le=MOST_MEMBERS)
    """Fewer ready ones than this are filled up to `max`."""

    max: int = Field(default=2, ge=0, le=MOST_MEMBERS)
    refuse_when_empty: bool = False
    """Tell who asks for this pool to come again, instead of starting a sandbox then."""

    def pool(self, name: str, now: datetime) -> Pool:
        """The same as the model knows it."""
        template = Template(self.image, self.resources, self.extensions, self.env, self.entrypoint)
        capacity = Capacity(self.min, self.max)
        return Pool(name, template, capacity, now, refuses=self.refuse_when_empty, fixed=True)

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class PoolsSettings(BaseModel):
    """`[pools]`: sandboxes that are started before anybody asks for them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    implicit: int = Field(default=0, ge=0, le=MOST_MEMBERS)
    """So many are kept ready of the kind that was asked for most lately; 0 keeps none."""

    max_age_seconds: float = Field(default=3600, gt=0)
    """A member that nobody wanted for so long is replaced by a fresh one."""

    named: Mapping[str, PoolSettings] = Field(default_factory=dict)


class StoreSettings(BaseModel):
    """`[store]`: where rows are kept. Without a `url` that is a file in the data directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = Field(default=None, pattern="^postgres(ql)?://", repr=False)
    """A PostgreSQL database; several servers may share it."""

    advertise: str | None = Field(default=None, pattern="^http://[^/]+$")
    """Where the other servers reach this one; by default the address on which it listens."""

    lease_seconds: float = Field(default=15, ge=1)
    """So long a server that was killed is waited for before another process may act in its place."""


class ControlSettings(BaseModel):
    """All that the lifecycle service is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox: SandboxSettings = SandboxSettings()
    admission: AdmissionSettings = AdmissionSettings()
    data_dir: Path = Path("/")
    store: StoreSettings = StoreSettings()
    renew_intent: RenewIntentSettings = RenewIntentSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    pools: PoolsSettings = PoolsSettings()
    max_sandbox_timeout_seconds: int | None = None
    default_policy: NetworkPolicy | None = None
    vault: VaultSettings = VaultSettings()

    @property
    def defaults(self) -> Defaults:
        """What a draft gets when it does not say."""
        made = self.sandbox.defaults(self.max_sandbox_timeout_seconds)
        return replace(made, network_policy=self.default_policy)
