# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Lifecycle hooks: what runs before the entrypoint, and what runs again and again."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, Code


async def _with(
    client: AsyncClient, image: str, lifecycle: dict[str, object], **options: object
) -> AsyncSandbox:
    return await AsyncSandbox.create(image, request={"lifecycle": lifecycle}, client=client, **options)  # type: ignore[arg-type]


async def test_pre_start_is_done_when_the_entrypoint_begins(client: AsyncClient, image: str) -> None:
    marker = f"/tmp/casulo-{uuid.uuid4()}"
    entrypoint = ["sh", "-c", f"cat {marker} > {marker}.seen; exec sleep 600"]
    hook = {"preStart": {"command": ["sh", "-c", f"sleep 0.2; echo prepared > {marker}"]}}
    async with await _with(client, image, hook, entrypoint=entrypoint) as box:
        seen = await box.commands.run(f"until [ -s {marker}.seen ]; do sleep 0.05; done; cat {marker}.seen")
        assert seen.stdout == "prepared\n"
        await box.commands.run(f"rm -f {marker} {marker}.seen")


async def test_a_failing_pre_start_fails_the_create_with_its_words(client: AsyncClient, image: str) -> None:
    hook = {"preStart": {"command": ["sh", "-c", "echo no luck >&2; exit 3"]}}
    with pytest.raises(CasuloError) as failed:
        await _with(client, image, hook)
    assert failed.value.code == Code.SANDBOX_START_FAILED
    assert "3" in failed.value.message


async def test_a_pre_start_that_takes_too_long_is_ended(client: AsyncClient, image: str) -> None:
    with pytest.raises(CasuloError) as failed:
        await _with(client, image, {"preStart": {"command": ["sleep", "60"], "timeoutSeconds": 1}})
    assert failed.value.code == Code.SANDBOX_START_FAILED


async def test_periodic_hooks_run_again_and_again(client: AsyncClient, image: str) -> None:
    marker = f"/tmp/casulo-{uuid.uuid4()}"
    tick = {"name": "tick", "schedule": "@every 1s", "command": ["sh", "-c", f"echo x >> {marker}"]}
    async with await _with(client, image, {"periodic": [tick]}) as box:
        await asyncio.sleep(3.5)
        lines = (await box.commands.run(f"wc -l < {marker}; rm {marker}")).stdout
        assert 2 <= int(lines) <= 4


@pytest.mark.parametrize(
    "hooks",
    [
        {"preStart": {"command": []}},
        {"preStart": {"command": ["true"], "timeout": 5}},
        {"periodic": [{"name": "a", "schedule": "@every 1s", "command": ["true"]}] * 2},
        {"periodic": [{"name": "a", "schedule": "sometimes", "command": ["true"]}]},
        {"sometimes": {"command": ["true"]}},
    ],
)
async def test_hooks_that_can_never_run_are_refused(
    client: AsyncClient, image: str, hooks: dict[str, object]
) -> None:
    with pytest.raises(CasuloError) as refused:
        await _with(client, image, hooks)
    assert refused.value.code in (Code.INVALID_REQUEST, Code.INVALID_PARAMETER)
