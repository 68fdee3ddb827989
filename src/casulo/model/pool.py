# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a pool is: sandboxes of one kind that are started before anybody asks for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from casulo.model import quantities
from casulo.model.draft import ISOLATED_SESSIONS, ISOLATION, POOL_REF, RUNTIME, Draft
from casulo.model.errors import Code, InvalidRequest, NotFound
from casulo.model.sandbox import Isolation, Resources, Spec

MOST_MEMBERS = 1000
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_OFFICIAL_DEFAULT = {"cpu": "1", "memory": "2Gi"}
_OWN_WISHES = frozenset({POOL_REF, ISOLATION, RUNTIME})


@dataclass(frozen=True)
class Capacity:
    """How many members wait ready (`buffer`), and how many there are together with those in use (`pool`).

    Fewer than `buffer_min` are filled up to `buffer_max`; more than `buffer_max` are given up.
    """

    buffer_min: int
    buffer_max: int
    pool_min: int = 0
    pool_max: int = MOST_MEMBERS

    def __post_init__(self) -> None:
        if not 0 <= self.buffer_min <= self.buffer_max <= MOST_MEMBERS:
            raise _wrong(f"bufferMin and bufferMax must go up, from 0 to {MOST_MEMBERS}")
        if not 0 <= self.pool_min <= self.pool_max <= MOST_MEMBERS:
            raise _wrong(f"poolMin and poolMax must go up, from 0 to {MOST_MEMBERS}")

    def missing(self, ready: int, in_use: int) -> int:
        """How many to start now, or, below zero, how many to give up."""
        if ready > self.buffer_max:
            return self.buffer_max - ready
        wanted = self.buffer_max - ready if ready < self.buffer_min else 0
        wanted = max(wanted, min(self.pool_min - ready - in_use, self.buffer_max - ready))
        return max(0, min(wanted, self.pool_max - ready - in_use))


@dataclass(frozen=True)
class Template:
    """What the members of a pool are. `entrypoint` and `env` are defaults for who says nothing."""

    image: str
    resource_limits: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None

    def draft(self) -> Draft:
        """A create request for a member."""
        return Draft(
            image=self.image,
            resource_limits=self.resource_limits,
            extensions=self.extensions,
            env=self.env,
            entrypoint=self.entrypoint,
        )


@dataclass(frozen=True)
class Pool:
    """A pool as it was asked for. A `fixed` one comes from the configuration and is changed there.

    A pool that `refuses` has nothing for who comes while it is empty; another one starts a sandbox then.
    """

    name: str
    template: Template
    capacity: Capacity
    created_at: datetime
    revision: int = 1
    refuses: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class PoolStatus:
    """How many members a pool has: `ready` ones wait, those `in_use` were handed out and still exist."""

    ready: int
    in_use: int
    trouble: str = ""


def check_name(name: str) -> str:
    """`name` itself, or InvalidRequest: it is a DNS name."""
    if len(name) > 253 or not all(_LABEL.fullmatch(part) for part in name.split(".")):
        raise _wrong(f"{name!r} cannot be the name of a pool; use small letters, digits and '-'")
    return name


def drawn(draft: Draft, pool: Pool, given: Resources) -> Draft:
    """A request for a sandbox of `pool`, completed with what the pool says; its members have `given`."""
    template = pool.template
    for name, asked in (
        ("image", draft.image),
        ("snapshotId", draft.snapshot_id),
        ("volumes", draft.volumes),
    ):
        if asked and asked != getattr(template, name, None):
            raise _wrong(f"{name}: the pool {pool.name!r} decides this; leave it out")
    _check_limits(draft.resource_limits, pool, given)
    return replace(
        draft,
        image=template.image,
        resource_limits=template.resource_limits,
        extensions={**template.extensions, **draft.extensions},
        env={**template.env, **draft.env},
        entrypoint=draft.entrypoint or template.entrypoint,
    )


def _check_limits(asked: Mapping[str, str], pool: Pool, given: Resources) -> None:
    """The pool decides, and never gives less than was asked for.

    The official client sends its usual limits with every request; they are nobody's wish.
    """
    if dict(asked) == _OFFICIAL_DEFAULT:
        return
    for name, text in asked.items():
        if pool.template.resource_limits.get(name) != text and not _enough(name, text, given):
            raise _wrong(f"resourceLimits: the pool {pool.name!r} has no {name} {text} to give; leave it out")


def _enough(name: str, text: str, given: Resources) -> bool:
    if name == "cpu":
        return quantities.cpu_millis(text) <= given.cpu_millis
    return name == "memory" and quantities.whole_bytes(name, text) <= given.memory_bytes


def shape(spec: Spec, isolation: Isolation) -> Spec:
    """What of a spec is decided when its container starts; the rest is known only at hand-out.

    Whatever is not named here belongs to the shape: what a spec may hold some day is never lost.
    """
    kept = {
        key: value
        for key, value in spec.extensions.items()
        if key == ISOLATED_SESSIONS or (key.startswith("casulo.") and key not in _OWN_WISHES)
    }
    return replace(
        spec,
        entrypoint=(),
        env={},
        resource_limits={},
        extensions=kept,
        isolation=isolation,
        network_policy=None,
        credential_proxy=False,
        trusted_ca="",
        timeout_seconds=None,
        pre_start=None,
        periodic=(),
    )


def pool_not_found(name: str) -> NotFound:
    """The one answer for pools that there are not."""
    return NotFound(f"no pool is called {name!r}", code=Code.POOL_NOT_FOUND, hint="`osb pool ls` lists them")


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, code=Code.INVALID_PARAMETER)
