# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Network policies: reading, changing, and asking what they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from casulo.api.routes import respond
from casulo.api.routes.context import context
from casulo.control.access import PolicyAccess
from casulo.control.policies import Status
from casulo.model.policywire import parse_policy, parse_rules, parse_targets, wire

router = APIRouter(tags=["Network policies"])

_PATH = "/sandboxes/{sandbox_id}/networkpolicy"
_ERRORS = respond.errors(400, 404, 409, 501)


class PolicyRule(BaseModel):
    """One rule. What is left out means any."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["allow", "deny"] = "deny"
    target: str = Field(description="A name, `*.name`, an address, a network, or `preset:pypi` and the like.")
    ports: list[int | str] | None = Field(default=None, description="443 or `8000-8010`.")
    protocols: list[Literal["tcp", "udp", "icmp"]] | None = None
    methods: list[str] | None = Field(default=None, description="Of HTTP that is not encrypted.")
    paths: list[str] | None = Field(default=None, description="`/exact` or `/below/*`, of the same.")


class PolicyBody(BaseModel):
    """The first rule that matches decides, then the default. `{}` denies everything."""

    model_config = ConfigDict(extra="forbid")

    defaultAction: Literal["allow", "deny"] = "deny"
    egress: list[PolicyRule] = []


class PolicyStatus(BaseModel):
    """What holds."""

    status: Literal["ok", "failed"] = "ok"
    mode: Literal["allow_all", "deny_all", "enforcing"]
    enforcementMode: Literal["dns+nft"] = "dns+nft"
    reason: str | None = None
    policy: dict[str, Any]


class TestBody(BaseModel):
    """A request that is not made."""

    url: str = Field(min_length=1, max_length=8192)
    method: str = "GET"


class Verdict(BaseModel):
    """What would become of it."""

    allow: bool
    rule: str
    reason: str
    name: str | None = None
    port: int
    protocol: str
    addresses: list[str] | None = None


class Destination(BaseModel):
    """Something that was reached, and how often."""

    name: str | None = None
    address: str | None = None
    port: int
    protocol: str
    count: int


class Destinations(BaseModel):
    """All that was reached since the egress process began."""

    items: list[Destination]


def status_body(status: Status, reason: str = "") -> PolicyStatus:
    """A status on the wire."""
    failed = bool(status.failures)
    told = reason or status.reason or (f"{status.failures} failures: {status.last_failure}" if failed else "")
    return PolicyStatus(
        status="failed" if failed else "ok",
        mode=status.policy.mode,  # type: ignore[arg-type]
        reason=told or None,
        policy=wire(status.policy),
    )


def _policies(request: Request) -> PolicyAccess:
    return context(request).lifecycle.policies


@router.get(_PATH, response_model=PolicyStatus, responses=_ERRORS)
async def get_network_policy(request: Request, sandbox_id: str) -> Response:
    """The policy that holds. A sandbox without one has `defaultAction: allow` and no rules."""
    return respond.model(status_body(await _policies(request).get(sandbox_id)))


@router.put(_PATH, response_model=PolicyStatus, responses=respond.errors(400, 404, 409, 413, 501))
async def put_network_policy(
    request: Request, sandbox_id: str, body: Any = Body(default=None, description="A policy.")
) -> Response:
    """Replace the policy, for new connections and for those that it no longer allows."""
    status = await _policies(request).replace(sandbox_id, parse_policy(body))
    return respond.model(status_body(status))


@router.patch(_PATH, response_model=PolicyStatus, responses=respond.errors(400, 404, 409, 413, 501))
async def patch_network_policy(
    request: Request, sandbox_id: str, body: Any = Body(description="A list of rules.")
) -> Response:
    """Put rules before those that they do not override by their targets."""
    status = await _policies(request).merge(sandbox_id, parse_rules(body))
    return respond.model(status_body(status))


@router.delete(_PATH, response_model=PolicyStatus, responses=_ERRORS)
async def delete_network_policy_rules(
    request: Request, sandbox_id: str, body: Any = Body(description="A list of targets.")
) -> Response:
    """Take the rules on these targets out; there may be none."""
    status = await _policies(request).remove(sandbox_id, parse_targets(body))
    return respond.model(status_body(status))


@router.get("/sandboxes/{sandbox_id}/egress/log", response_model=None, responses=_ERRORS)
async def egress_log(
    request: Request,
    sandbox_id: str,
    follow: bool = Query(default=False, description="Go on with what comes."),
) -> Response:
    """The last decisions, one JSON object per line."""
    found = await _policies(request).log(sandbox_id, follow=follow)
    return StreamingResponse(_begun(found), media_type="application/x-ndjson")


async def _begun(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lets the head of the answer go out before there is anything to tell."""
    yield b""
    async for line in lines:
        yield line


@router.post("/sandboxes/{sandbox_id}/egress/test", response_model=Verdict, responses=_ERRORS)
async def egress_test(request: Request, sandbox_id: str, body: TestBody) -> Response:
    """What would become of a request, and why, without making it."""
    told = await _policies(request).test(sandbox_id, body.url, body.method)
    return respond.model(Verdict(**told))


@router.get("/sandboxes/{sandbox_id}/egress/seen", response_model=Destinations, responses=_ERRORS)
async def egress_seen(request: Request, sandbox_id: str) -> Response:
    """The destinations that were allowed, from which a policy can be learned."""
    told = await _policies(request).seen(sandbox_id)
    return respond.model(Destinations(items=[Destination(**item) for item in told]))
