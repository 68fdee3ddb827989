# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of API keys. Absent members are left out, never null."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from casulo.model import quantities
from casulo.model.keys import Key, Limits, Scope, Usage


class _Strict(BaseModel):
    """A member that is spelled wrong would leave a key without its limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KeyLimits(_Strict):
    """How much the sandboxes of the key's owner may hold together."""

    sandboxes: int | None = Field(default=None, ge=0)
    cpu: str | None = Field(default=None, description="For example `4` or `500m`.")
    memory: str | None = Field(default=None, description="For example `8Gi`.")
    disk: str | None = Field(default=None, description="For example `20Gi`; sandboxes must then name theirs.")

    def parsed(self) -> Limits:
        """The numbers; InvalidRequest names what is no quantity."""
        return Limits(
            sandboxes=self.sandboxes,
            cpu_millis=None if self.cpu is None else quantities.cpu_millis(self.cpu),
            memory_bytes=None if self.memory is None else quantities.whole_bytes("memory", self.memory),
            disk_bytes=None if self.disk is None else quantities.whole_bytes("disk", self.disk),
        )


class CreateKeyRequest(_Strict):
    """What a key shall open."""

    name: str
    scopes: list[Scope] = [Scope.CREATE]
    limits: KeyLimits = KeyLimits()
    sharedWith: str | None = Field(default=None, description="Name of a key with the same sandboxes.")


class KeyUsage(BaseModel):
    """What the sandboxes of the key's owner hold now."""

    sandboxes: int
    cpu: str
    memory: str
    disk: str


class KeyBody(BaseModel):
    """A key, without its secret."""

    name: str
    owner: str
    scopes: list[Scope]
    limits: KeyLimits
    usage: KeyUsage | None = None
    createdAt: datetime
    rotatedAt: datetime | None = None


class NewKeyBody(KeyBody):
    """A key with its secret, which is shown this once."""

    key: str


class KeyList(BaseModel):
    """All keys but the server's own."""

    items: list[KeyBody]


def key_body(key: Key, usage: Usage | None = None) -> KeyBody:
    """A key on the wire."""
    return KeyBody(
        name=key.name,
        owner=key.owner,
        scopes=sorted(key.scopes),
        limits=_limits(key.limits),
        usage=None if usage is None else _usage(usage),
        createdAt=key.created_at,
        rotatedAt=key.rotated_at,
    )


def new_key_body(key: Key, secret: str) -> NewKeyBody:
    """A key and its secret on the wire."""
    return NewKeyBody(**key_body(key).model_dump(), key=secret)


def _limits(limits: Limits) -> KeyLimits:
    return KeyLimits(
        sandboxes=limits.sandboxes,
        cpu=None if limits.cpu_millis is None else f"{limits.cpu_millis}m",
        memory=None if limits.memory_bytes is None else str(limits.memory_bytes),
        disk=None if limits.disk_bytes is None else str(limits.disk_bytes),
    )


def _usage(usage: Usage) -> KeyUsage:
    return KeyUsage(
        sandboxes=usage.sandboxes,
        cpu=f"{usage.cpu_millis}m",
        memory=str(usage.memory_bytes),
        disk=str(usage.disk_bytes),
    )
