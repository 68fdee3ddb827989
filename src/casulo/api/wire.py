# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of the lifecycle API, spelled as on the wire. Absent members are left out, never null."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, model_validator

from casulo.api.wire_volumes import MAX_VOLUMES, VolumeSpec
from casulo.model.draft import POOL_REF
from casulo.model.sandbox import MIN_TIMEOUT_SECONDS, Sandbox
from casulo.model.template import is_template
from casulo.store.query import Page

_ECHOED = ("opensandbox.extensions.", "casulo.")
_EXCLUDED_BY_TEMPLATE = (
    "image",
    "snapshotId",
    "entrypoint",
    "env",
    "resourceLimits",
    "resourceRequests",
    "volumes",
    "platform",
    "credentialProxy",
    "secureAccess",
    "lifecycle",
)


class _Request(BaseModel):
    """Members that are not known are tolerated, so that newer clients work."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ImageAuth(_Request):
    """Credentials of a registry."""

    username: str
    password: str


class ImageSpec(_Request):
    """What the root file system is made of."""

    uri: str = Field(min_length=1, description="An OCI reference, or `host`: this machine's own programs.")
    auth: ImageAuth | None = None


class PlatformSpec(_Request):
    """Operating system and architecture."""

    os: str
    arch: str


class CredentialProxy(_Request):
    """Whether credentials are injected into outgoing requests."""

    enabled: bool = False


class _Strict(BaseModel):
    """Members that are not known are refused: a hook that is spelled wrong would silently not run."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PreStart(_Strict):
    """Runs before the entrypoint; its failure fails the start."""

    command: list[str] = Field(min_length=1)
    timeoutSeconds: int = Field(default=60, ge=1, le=10800)


class Periodic(_Strict):
    """Runs again and again, never twice at once."""

    name: str = Field(min_length=1)
    schedule: str = Field(description="Five cron fields in UTC, @hourly and its kin, or `@every 30s`.")
    command: list[str] = Field(min_length=1)
    timeoutSeconds: int = Field(default=60, ge=1, le=300)


class Lifecycle(_Strict):
    """Commands that the sandbox's daemon runs by itself."""

    preStart: PreStart | None = None
    periodic: list[Periodic] | None = None

    @model_validator(mode="after")
    def _named_apart(self) -> Self:
        names = [hook.name for hook in self.periodic or []]
        if len(names) != len(set(names)):
            raise ValueError("periodic hooks need names of their own")
        return self


class CreateSandboxRequest(_Request):
    """What a sandbox shall be."""

    image: ImageSpec | None = None
    snapshotId: str | None = None
    templateId: str | None = Field(default=None, min_length=1)
    timeout: StrictInt | None = Field(
        default=None, ge=MIN_TIMEOUT_SECONDS, description="Seconds to live; absent or null: until deleted."
    )
    resourceLimits: dict[str, str] | None = Field(
        default=None, description="cpu, memory, pids, shm; `{}` takes the server's defaults."
    )
    resourceRequests: dict[str, str] | None = Field(
        default=None, description="Accepted and without effect: a sandbox is given its limits."
    )
    env: dict[str, str | None] | None = None
    metadata: dict[str, str] | None = None
    entrypoint: list[str] | None = Field(
        default=None, min_length=1, description="Absent: what the image says."
    )
    platform: PlatformSpec | None = None
    networkPolicy: dict[str, Any] | None = None
    credentialProxy: CredentialProxy | None = None
    secureAccess: bool | None = None
    volumes: list[VolumeSpec] | None = Field(default=None, max_length=MAX_VOLUMES)
    lifecycle: Lifecycle | None = None
    extensions: dict[str, str] | None = None

    @property
    def pooled(self) -> bool:
        """Whether a sandbox of a pool is asked for."""
        return POOL_REF in (self.extensions or {})

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.templateId is not None:
            given = [name for name in _EXCLUDED_BY_TEMPLATE if getattr(self, name)]
            if given:
                raise ValueError(f"templateId excludes {', '.join(given)}")
            if self.timeout is None:
                raise ValueError("templateId needs a timeout")
        elif not self.pooled and (self.image is None) == (not (self.snapshotId or "").strip()):
            raise ValueError("exactly one of image and snapshotId must be given")
        return self

    @model_validator(mode="after")
    def _resources_are_named(self) -> Self:
        if self.resourceLimits is None and self.templateId is None and not self.pooled:
            raise ValueError("resourceLimits is required; {} takes the server's defaults")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if "OPENSANDBOX_LIFECYCLE" in (self.env or {}):
            raise ValueError("env: OPENSANDBOX_LIFECYCLE is reserved")
        restored = bool((self.snapshotId or "").strip())  # with the policy of its source
        wanted = self.credentialProxy is not None and self.credentialProxy.enabled
        if wanted and self.networkPolicy is None and not restored:
            raise ValueError("credentialProxy needs a networkPolicy")
        if self.lifecycle and self.pooled:
            raise ValueError("lifecycle hooks cannot be combined with poolRef")
        return self


def _aware(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class RenewRequest(_Request):
    """The new end of life; without an offset it is UTC."""

    expiresAt: Annotated[datetime, AfterValidator(_aware)]


class MetricsEvent(BaseModel):
    """What a client tells about a create."""

    model_config = ConfigDict(frozen=True, extra="allow")

    eventType: Literal["sandbox.create"]
    createDurationMs: int = Field(ge=0)
    success: bool
    sandboxId: str | None = None
    image: str | None = None


class ErrorBody(BaseModel):
    """Every error, whatever the status."""

    code: str
    message: str
    hint: str | None = None


class ValidationDetail(BaseModel):
    """One thing that is wrong with the form of a request."""

    loc: list[str | int]
    msg: str
    type: str


class ValidationErrorBody(BaseModel):
    """An error of form: the details, and the first of them as text."""

    detail: list[ValidationDetail]
    code: str
    message: str


class SandboxStatus(BaseModel):
    """Where in its life a sandbox is."""

    state: str
    reason: str
    message: str
    lastTransitionAt: datetime


class ImageRef(BaseModel):
    """The image, without credentials."""

    uri: str


class PlatformRef(BaseModel):
    """The platform, if one was asked for."""

    os: str
    arch: str


class Allocation(BaseModel):
    """The pool that a sandbox came from."""

    mode: Literal["pool"] = "pool"
    poolRef: str
    state: Literal["allocated"] = "allocated"


class SandboxBody(BaseModel):
    """A sandbox as every call but create returns it."""

    id: str
    image: ImageRef | None = Field(default=None, description="Absent when it was restored from a snapshot.")
    snapshotId: str | None = None
    platform: PlatformRef | None = None
    status: SandboxStatus
    metadata: dict[str, str]
    extensions: dict[str, str] | None = None
    allocation: Allocation | None = None
    lineage: list[str] | None = Field(
        default=None, description="Sandboxes that it descends from, its parent first, gone ones included."
    )
    entrypoint: list[str]
    expiresAt: datetime | None = None
    createdAt: datetime


class Endpoint(BaseModel):
    """Where a port is reached (no scheme), and what to send along."""

    endpoint: str
    headers: dict[str, str] | None = None


class CreateSandboxResponse(BaseModel):
    """The new sandbox. `casulo` saves our own client the lookup of its daemon's endpoint."""

    id: str
    snapshotId: str | None = None
    platform: PlatformRef | None = None
    status: SandboxStatus
    metadata: dict[str, str]
    extensions: dict[str, str] | None = None
    allocation: Allocation | None = None
    lineage: list[str] | None = Field(
        default=None, description="Sandboxes that it descends from, its parent first, gone ones included."
    )
    entrypoint: list[str]
    expiresAt: datetime | None = None
    createdAt: datetime
    casulo: Endpoint | None = None


class Pagination(BaseModel):
    """Where in the list a page is."""

    page: int
    pageSize: int
    totalItems: int
    totalPages: int
    hasNextPage: bool


class SandboxList(BaseModel):
    """One page, newest first."""

    items: list[SandboxBody]
    pagination: Pagination


class RenewResponse(BaseModel):
    """The end of life that now holds."""

    expiresAt: datetime


class Health(BaseModel):
    """The server answers."""

    status: Literal["healthy"] = "healthy"


class Version(BaseModel):
    """The server's version."""

    version: str


class IsolationReport(BaseModel):
    """What one isolation of a runtime can do on this host, and why it cannot do the rest.

    `engine` starts the sandboxes; `platform` is how that runs their code, where there is a choice.
    """

    name: str
    default: bool
    engine: str
    platform: str
    features: list[str]
    missing: dict[str, str]


class RuntimeReport(BaseModel):
    """One runtime. `missing` says why it offers no other isolation."""

    name: str
    default: bool
    isolations: list[IsolationReport]
    missing: dict[str, str]


class CapabilityReport(BaseModel):
    """All enabled runtimes."""

    version: str
    runtimes: list[RuntimeReport]


def sandbox_body(sandbox: Sandbox) -> SandboxBody:
    """A sandbox on the wire."""
    image = None if sandbox.spec.snapshot_id else ImageRef(uri=sandbox.spec.image)
    return SandboxBody(image=image, **_common(sandbox))


def create_response(sandbox: Sandbox, endpoint: Endpoint | None) -> CreateSandboxResponse:
    """The answer to create."""
    return CreateSandboxResponse(casulo=endpoint, **_common(sandbox))


def _common(sandbox: Sandbox) -> dict[str, Any]:
    spec, status = sandbox.spec, sandbox.status
    echoed = {key: value for key, value in spec.extensions.items() if key.startswith(_ECHOED)}
    return {
        "id": sandbox.id,
        "snapshotId": None if is_template(spec.snapshot_id) else spec.snapshot_id,
        "platform": PlatformRef(os=spec.platform.os, arch=spec.platform.arch) if spec.platform else None,
        "status": SandboxStatus(
            state=status.state, reason=status.reason, message=status.message, lastTransitionAt=status.since
        ),
        "metadata": dict(sandbox.metadata),
        "extensions": echoed or None,
        "allocation": Allocation(poolRef=spec.extensions[POOL_REF]) if POOL_REF in spec.extensions else None,
        "lineage": list(spec.lineage) or None,
        "entrypoint": list(spec.entrypoint),
        "expiresAt": sandbox.expires_at,
        "createdAt": sandbox.created_at,
    }


def list_body(page: Page[Sandbox]) -> SandboxList:
    """One page on the wire."""
    items = [sandbox_body(sandbox) for sandbox in page.items]
    return SandboxList(items=items, pagination=pagination_of(page))


def pagination_of(page: Page[Any]) -> Pagination:
    """Where in the list a page is, on the wire."""
    return Pagination(
        page=page.page,
        pageSize=page.page_size,
        totalItems=page.total,
        totalPages=page.total_pages,
        hasNextPage=page.has_next,
    )
