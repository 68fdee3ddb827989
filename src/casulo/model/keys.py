# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""API keys: who a caller is, what it may do, and how much of the machine it may hold at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from casulo.model.errors import Code, Forbidden, InvalidRequest
from casulo.model.sandbox import Resources

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


class Scope(StrEnum):
    """What a key opens; each includes the ones after it."""

    ADMIN = "admin"
    """Everything of everybody, and the keys themselves."""

    CREATE = "create"
    """Make sandboxes, use, change and end one's own."""

    READ = "read"
    """Look at one's own."""


_INCLUDES = {
    Scope.ADMIN: frozenset(Scope),
    Scope.CREATE: frozenset({Scope.CREATE, Scope.READ}),
    Scope.READ: frozenset({Scope.READ}),
}


@dataclass(frozen=True)
class Limits:
    """How much the sandboxes of one owner may hold together; None is no limit.

    Ended sandboxes that were not deleted hold no CPU and no memory, but still count, and hold their disk.
    """

    sandboxes: int | None = None
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None

    @property
    def none(self) -> bool:
        """Whether nothing is limited, so that nothing needs to be counted."""
        return self == Limits()


@dataclass(frozen=True)
class Usage:
    """What the sandboxes of one owner hold."""

    sandboxes: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class Key:
    """A key as it is kept: never the secret, only its digest.

    Keys with the same `owner` see the same sandboxes.
    """

    id: str
    name: str
    owner: str
    scopes: frozenset[Scope]
    digest: str
    created_at: datetime
    limits: Limits = Limits()
    rotated_at: datetime | None = None


@dataclass(frozen=True)
class Caller:
    """On whose behalf a request is served."""

    name: str
    owner: str
    scopes: frozenset[Scope] = field(default_factory=frozenset)
    limits: Limits = Limits()

    def may(self, wanted: Scope) -> bool:
        """Whether one of the scopes includes `wanted`."""
        return any(wanted in _INCLUDES[scope] for scope in self.scopes)

    def require(self, wanted: Scope) -> None:
        """Forbidden unless the key may do `wanted`."""
        if not self.may(wanted):
            raise Forbidden(
                f"the key {self.name!r} lacks the scope {wanted.value!r}",
                code=Code.SCOPE_MISSING,
                hint="use another key; `osb key create --scope` makes one",
            )

    def sees(self, owner: str) -> bool:
        """Whether what belongs to `owner` exists for this caller."""
        return owner == self.owner or self.may(Scope.ADMIN)

    @property
    def seen_owner(self) -> str | None:
        """The one owner whose things it sees; None when it sees everybody's."""
        return None if self.may(Scope.ADMIN) else self.owner


OPERATOR = Caller("the server's own key", "", frozenset({Scope.ADMIN}))
"""Who holds the server's own key, and everybody on a server without one."""

GUEST = Caller("somebody without a key", "", frozenset({Scope.ADMIN}))
"""Who reaches a sandbox's port through a server that asks for no key there: the port's own token decides."""


def check_name(name: str) -> str:
    """`name` itself, or InvalidRequest."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot be the name of a key",
            code=Code.INVALID_PARAMETER,
            hint="use up to 63 small letters, digits, '-', '_' and '.'; letters or digits at both ends",
        )
    return name


def check_quota(limits: Limits, used: Usage, wanted: Resources) -> None:
    """Forbidden when one more sandbox with `wanted` would pass one of the limits."""
    asked = (
        ("sandboxes", limits.sandboxes, used.sandboxes, 1, ""),
        ("cpu", limits.cpu_millis, used.cpu_millis, wanted.cpu_millis, "m"),
        ("memory", limits.memory_bytes, used.memory_bytes, wanted.memory_bytes, " bytes"),
        ("disk", limits.disk_bytes, used.disk_bytes, wanted.disk_bytes or 0, " bytes"),
    )
    for name, limit, held, more, unit in asked:
        if limit is not None and held + more > limit:
            raise Forbidden(
                f"quota of this key: {name} is limited to {limit}{unit}; "
                f"{held}{unit} are held and {more}{unit} were asked for",
                code=Code.QUOTA_EXCEEDED,
                hint="delete sandboxes that are no longer needed, or have the limit raised",
            )
    if limits.disk_bytes is not None and wanted.disk_bytes is None:
        raise Forbidden(
            "quota of this key: disk is limited, so each sandbox must say how much it needs",
            code=Code.QUOTA_EXCEEDED,
            hint="name a disk size in resourceLimits",
        )
