# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a template is besides a snapshot: what it was ordered as, and when it counts as ready.

A template is stored as a snapshot whose id says so. Its order is in an extension of its spec.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from urllib.parse import urlsplit

from casulo.model.draft import Draft
from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound
from casulo.model.snapshot import Snapshot, SnapshotState

PREFIX = "tpl_"
NAMED = "template/"
"""Begins the names of the snapshots that our own clients keep as templates."""

BUILDS = "casulo.template"
"""Key of the metadata of the sandbox that a template is made from, and of the extension with its order."""

FORMATS = ("overlaybd", "native")
DEFAULT_PATIENCE = 60
_LOCAL = ("127.0.0.1", "localhost")
_PUBLISH = re.compile(r"s3://[^\s/]+(/\S*)?")


@dataclass(frozen=True)
class Probe:
    """`tcp` or `http` at a port of the sandbox, or `cmd` with a command for a shell."""

    kind: str
    port: int = 0
    what: str = ""


@dataclass(frozen=True)
class Readiness:
    """Without a probe the sandbox is left alone for `seconds`; with one, that is how long it may fail."""

    probe: str = ""
    seconds: int | None = None

    @property
    def patience(self) -> int:
        """How long to wait."""
        if self.seconds is not None:
            return self.seconds
        return DEFAULT_PATIENCE if self.probe else 0


@dataclass(frozen=True)
class Ordered:
    """What the caller said that is not part of a sandbox's spec."""

    publish: str
    format: str = FORMATS[0]
    metadata: Mapping[str, str] = field(default_factory=dict)
    readiness: Readiness = Readiness()

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, snapshot: Snapshot) -> Ordered:
        """What a template was ordered as."""
        body = json.loads(snapshot.spec.extensions[BUILDS])
        return cls(**{**body, "readiness": Readiness(**body["readiness"])})


def new_id() -> str:
    """An id that says what it is of."""
    return f"{PREFIX}{uuid.uuid4()}"


def is_template(snapshot_id: str | None) -> bool:
    """Whether the id is that of a template."""
    return snapshot_id is not None and snapshot_id.startswith(PREFIX)


def check(ordered: Ordered) -> None:
    """Refuse what is not understood."""
    if not _PUBLISH.fullmatch(ordered.publish):
        raise _invalid(f"publish: {ordered.publish!r} is no s3://bucket/… address")
    if ordered.readiness.probe:
        parsed(ordered.readiness.probe)


def parsed(text: str) -> Probe:
    """A probe as it is written on the wire."""
    kind, found, rest = text.partition("://")
    if kind == "cmd" and found and rest.strip():
        return Probe("cmd", what=rest)
    parts = urlsplit(text)
    try:
        port = parts.port or (80 if kind == "http" else 0)
    except ValueError:
        port = 0
    if kind not in ("tcp", "http") or parts.hostname not in _LOCAL or not port:
        raise _invalid(f"readiness.probe: {text!r} is not understood")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Probe(kind, port, path)


def drawn(draft: Draft, template: Snapshot) -> Draft:
    """The request for a sandbox of a template, which decides all that it was ordered with."""
    if template.status.state is not SnapshotState.READY:
        raise Conflict(
            f"template {template.id} is {template.status.state}: "
            f"{template.status.message or template.status.reason}",
            code=Code.TEMPLATE_NOT_READY,
            hint="wait until its phase is Succeeded, or make another one",
        )
    source = template.spec
    return replace(
        draft,
        entrypoint=source.entrypoint or None,
        env=source.env,
        resource_limits=source.resource_limits,
    )


def template_not_found(template_id: str) -> NotFound:
    """The one answer for unknown and deleted templates."""
    return NotFound(
        f"no template with id {template_id!r}",
        code=Code.TEMPLATE_NOT_FOUND,
        hint="it may have been deleted; GET /v1/templates lists those that are there",
    )


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(
        message,
        code=Code.INVALID_PARAMETER,
        hint="probes are tcp://127.0.0.1:PORT, http://127.0.0.1:PORT/PATH and cmd://COMMAND",
    )
