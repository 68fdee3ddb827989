# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The JSON of pools, spelled as on the wire. Absent members are left out, never null."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from casulo.api.wire import ImageSpec
from casulo.model.pool import MOST_MEMBERS, Capacity, Pool, PoolStatus, Template


class _Strict(BaseModel):
    """A member that is spelled wrong would make a pool of something else."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CapacitySpec(_Strict):
    """How many members wait ready (`buffer`), and how many there are with those in use (`pool`)."""

    bufferMin: int = Field(ge=0, le=MOST_MEMBERS)
    bufferMax: int = Field(ge=0, le=MOST_MEMBERS)
    poolMin: int = Field(default=0, ge=0, le=MOST_MEMBERS)
    poolMax: int = Field(default=MOST_MEMBERS, ge=0, le=MOST_MEMBERS)

    def parsed(self) -> Capacity:
        """The same as the model knows it; InvalidRequest when it does not go up."""
        return Capacity(self.bufferMin, self.bufferMax, self.poolMin, self.poolMax)


class PoolTemplate(_Strict):
    """What the members are. `env` and `entrypoint` are defaults for who says nothing."""

    image: ImageSpec
    resourceLimits: dict[str, str] = {}
    extensions: dict[str, str] = {}
    env: dict[str, str] = {}
    entrypoint: list[str] | None = Field(default=None, min_length=1)

    def parsed(self) -> Template:
        """The same as the model knows it."""
        return Template(
            image=self.image.uri,
            resource_limits=self.resourceLimits,
            extensions=self.extensions,
            env=self.env,
            entrypoint=None if self.entrypoint is None else tuple(self.entrypoint),
        )


class CreatePoolRequest(_Strict):
    """A pool to be kept."""

    name: str = Field(min_length=1, max_length=253)
    template: PoolTemplate
    capacitySpec: CapacitySpec
    refuseWhenEmpty: bool = Field(
        default=False, description="Answer 429 to who names the pool while it is empty, instead of starting."
    )


class ChangePoolRequest(_Strict):
    """Another size."""

    capacitySpec: CapacitySpec


class PoolStatusBody(BaseModel):
    """`available` members wait; `allocated` ones were handed out by name and still exist."""

    total: int
    allocated: int
    available: int
    revision: str
    trouble: str | None = None


class PoolBody(BaseModel):
    """A pool."""

    name: str
    template: PoolTemplate
    capacitySpec: CapacitySpec
    refuseWhenEmpty: bool
    configured: bool
    status: PoolStatusBody
    createdAt: datetime


class PoolList(BaseModel):
    """All pools."""

    items: list[PoolBody]


def pool_body(pool: Pool, status: PoolStatus) -> PoolBody:
    """A pool on the wire."""
    template, capacity = pool.template, pool.capacity
    return PoolBody(
        name=pool.name,
        template=PoolTemplate(
            image=ImageSpec(uri=template.image),
            resourceLimits=dict(template.resource_limits),
            extensions=dict(template.extensions),
            env=dict(template.env),
            entrypoint=None if template.entrypoint is None else list(template.entrypoint),
        ),
        capacitySpec=CapacitySpec(
            bufferMin=capacity.buffer_min,
            bufferMax=capacity.buffer_max,
            poolMin=capacity.pool_min,
            poolMax=capacity.pool_max,
        ),
        refuseWhenEmpty=pool.refuses,
        configured=pool.fixed,
        status=PoolStatusBody(
            total=status.ready + status.in_use,
            allocated=status.in_use,
            available=status.ready,
            revision=str(pool.revision),
            trouble=status.trouble or None,
        ),
        createdAt=pool.created_at,
    )
