# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of templates, spelled as on the wire. Absent members are left out, never null."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from casulo.api.wire import Pagination, pagination_of
from casulo.model.draft import Draft
from casulo.model.pruning import Found, Pruned
from casulo.model.sandbox import Spec
from casulo.model.snapshot import Snapshot, SnapshotState
from casulo.model.template import Ordered, Readiness
from casulo.store.query import Page

_PHASES = {
    SnapshotState.CREATING: "Building",
    SnapshotState.READY: "Succeeded",
    SnapshotState.FAILED: "Failed",
    SnapshotState.DELETING: "Failed",
}
_KEPT_HERE = "kept by this server, and not published elsewhere"


class _Strict(BaseModel):
    """A member that is spelled wrong would make a template of something else."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReadinessSpec(_Strict):
    """When the sandbox is ready to be kept."""

    probe: str | None = Field(
        default=None,
        min_length=1,
        max_length=8192,
        description="tcp://127.0.0.1:PORT, http://127.0.0.1:PORT/PATH or cmd://COMMAND.",
    )
    warmupSeconds: int | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="How long the probe may fail (60); without a probe, how long to wait (0).",
    )


class CreateTemplateRequest(_Strict):
    """What to start, wait for and keep."""

    image: str = Field(min_length=1)
    publish: str = Field(min_length=1, max_length=1024, description="Kept as it is; nothing is published.")
    resourceLimits: dict[str, str] | None = None
    entrypoint: list[str] | None = Field(default=None, min_length=1)
    env: dict[str, str | None] | None = None
    metadata: dict[str, str] | None = None
    readiness: ReadinessSpec | None = None
    format: Literal["overlaybd", "native"] | None = Field(
        default=None, description="Echoed: this server has a form of its own."
    )

    def draft(self) -> Draft:
        """The sandbox that it is made from."""
        return Draft(
            image=self.image,
            entrypoint=tuple(self.entrypoint) if self.entrypoint else None,
            resource_limits=self.resourceLimits or {},
            env={key: value for key, value in (self.env or {}).items() if value is not None},
        )

    def ordered(self) -> Ordered:
        """The rest."""
        asked = self.readiness or ReadinessSpec()
        readiness = Readiness(asked.probe or "", asked.warmupSeconds)
        return Ordered(self.publish, self.format or "overlaybd", self.metadata or {}, readiness)


class TemplateStatusBody(BaseModel):
    """Pending, Building, Succeeded or Failed."""

    phase: str
    manifestRef: str | None = None
    message: str | None = None


class TemplateBody(BaseModel):
    """A template as every call returns it."""

    templateId: str
    image: str
    publish: str
    format: str
    status: TemplateStatusBody
    resourceLimits: dict[str, str] | None = None
    entrypoint: list[str] | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    readiness: ReadinessSpec | None = None
    createdAt: datetime
    updatedAt: datetime


class TemplateList(BaseModel):
    """One page, newest first."""

    items: list[TemplateBody]
    pagination: Pagination


def template_body(template: Snapshot) -> TemplateBody:
    """A template on the wire."""
    ordered = Ordered.of(template)
    spec: Spec = template.spec
    return TemplateBody(
        templateId=template.id,
        image=spec.image,
        publish=ordered.publish,
        format=ordered.format,
        status=_status(template),
        resourceLimits=dict(spec.resource_limits) or None,
        entrypoint=list(spec.entrypoint) or None,
        env=dict(spec.env) or None,
        metadata=dict(ordered.metadata) or None,
        readiness=_readiness(ordered.readiness),
        createdAt=template.created_at,
        updatedAt=template.status.since,
    )


def _status(template: Snapshot) -> TemplateStatusBody:
    state = template.status.state
    if state is SnapshotState.READY:
        return TemplateStatusBody(
            phase=_PHASES[state], manifestRef=f"casulo://{template.id}", message=_KEPT_HERE
        )
    return TemplateStatusBody(phase=_PHASES[state], message=template.status.message or None)


def _readiness(readiness: Readiness) -> ReadinessSpec | None:
    if readiness == Readiness():
        return None
    return ReadinessSpec(probe=readiness.probe or None, warmupSeconds=readiness.seconds)


class PruneRequest(_Strict):
    """What may go. Outdated and failed templates always may."""

    unused: bool = Field(default=False, description="Also those that could be used and are not.")
    dryRun: bool = Field(default=False, description="Only say what would be removed.")


class PrunedItem(BaseModel):
    """One thing: a `template`, or what a runtime keeps by itself."""

    kind: str
    id: str
    name: str | None = None
    reason: str
    bytes: int | None = Field(default=None, description="On the server's disk, where it is known.")
    usedBy: list[str] | None = Field(default=None, description="Sandboxes that were made of it.")


class PruneResponse(BaseModel):
    """What is gone, or would be, and what was left on purpose."""

    removed: list[PrunedItem]
    kept: list[PrunedItem]


def prune_response(told: Pruned) -> PruneResponse:
    """On the wire."""
    return PruneResponse(removed=[_item(one) for one in told.removed], kept=[_item(one) for one in told.kept])


def _item(found: Found) -> PrunedItem:
    return PrunedItem(
        kind=found.kind,
        id=found.id,
        name=found.name or None,
        reason=found.reason,
        bytes=found.bytes or None,
        usedBy=list(found.used_by) or None,
    )


def template_list(page: Page[Snapshot]) -> TemplateList:
    """One page on the wire."""
    items = [template_body(template) for template in page.items]
    return TemplateList(items=items, pagination=pagination_of(page))
