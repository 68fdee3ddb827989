# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From create to kill: what a caller sees of a sandbox's life."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from support.server import Server


async def test_create_get_kill(client: AsyncClient, image: str) -> None:
    async with await AsyncSandbox.create(image, metadata={"a": "b"}, client=client) as box:
        info = await box.refresh()
        assert (info.id, info.state, info.image) == (box.id, "Running", image)
        assert info.entrypoint == (("tail", "-f", "/dev/null") if image == "host" else ())
        assert dict(info.metadata) == {"a": "b"}
        assert info.expires_at is not None
        assert timedelta(seconds=590) < info.expires_at - info.created_at < timedelta(seconds=610)
        assert await box.health()
    with pytest.raises(NotFound) as caught:
        await client.get(box.id)
    assert caught.value.code == Code.SANDBOX_NOT_FOUND
    with pytest.raises(NotFound):
        await client.kill(box.id)


async def test_no_nulls_on_the_wire(client: AsyncClient, server: Server) -> None:
    async with await AsyncSandbox.create(server.image, timeout=None, client=client) as box:
        for path in (f"/v1/sandboxes/{box.id}", "/v1/sandboxes", f"/sandboxes/{box.id}/endpoints/44772"):
            assert ":null" not in server.request("GET", path).text
        assert "expiresAt" not in server.request("GET", f"/v1/sandboxes/{box.id}").json()


async def test_listing_filters_and_pages(client: AsyncClient, image: str) -> None:
    run = uuid.uuid4().hex
    boxes = [await AsyncSandbox.create(image, metadata={"run": run}, client=client) for _ in range(3)]
    try:
        first = await client.list(metadata={"run": run}, page_size=2)
        assert [i.id for i in first] == [boxes[2].id, boxes[1].id]
        assert (first.total_items, first.total_pages, first.has_next_page) == (3, 2, True)
        second = await client.list(metadata={"run": run}, page_size=2, page=2)
        assert [i.id for i in second] == [boxes[0].id] and not second.has_next_page
        await boxes[0].pause()
        assert {i.id for i in await client.list(states=["paused"], metadata={"run": run})} == {boxes[0].id}
        assert not await client.list(metadata={"run": run, "a b": "c&d=%"})
    finally:
        await asyncio.gather(*(box.kill() for box in boxes))


async def test_metadata_patch_is_permanent(box: AsyncSandbox, client: AsyncClient) -> None:
    await box.patch_metadata({"env": "test", "team": "red"})
    await box.patch_metadata({"env": "stage", "team": None})
    assert dict((await client.get(box.id)).metadata) == {"env": "stage"}
    with pytest.raises(InvalidRequest) as caught:
        await box.patch_metadata({"opensandbox.io/x": "y"})
    assert caught.value.code == Code.INVALID_METADATA_LABEL


async def test_renew_extends_and_shortens(box: AsyncSandbox) -> None:
    for wanted in (1200, 120):
        told = await box.renew(wanted)
        assert abs(told - (datetime.now(UTC) + timedelta(seconds=wanted))) < timedelta(seconds=5)
        assert (await box.refresh()).expires_at == told


async def test_expired_sandbox_is_gone(box: AsyncSandbox, client: AsyncClient) -> None:
    await box.renew(0.5)
    deadline = time.monotonic() + 10
    with pytest.raises(NotFound):
        while time.monotonic() < deadline:
            await client.get(box.id)
            await asyncio.sleep(0.1)
    assert not await box.health()


async def test_pause_keeps_memory_and_stops_time(box: AsyncSandbox) -> None:
    script = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count-$0; sleep 0.02; done"
    mark = uuid.uuid4().hex
    counter = await box.commands.start(["sh", "-c", script, mark])
    await _until_exists(box, f"/tmp/count-{mark}")
    await box.pause()
    assert (await box.refresh()).state == "Paused"
    with pytest.raises(Conflict):
        await box._client.pause(box.id)
    await asyncio.sleep(0.5)
    await box.resume()
    assert (await box.commands.status(counter)).running
    first = await _counted(box, mark)
    for _ in range(200):
        if await _counted(box, mark) > first:
            break
        await asyncio.sleep(0.05)
    assert await _counted(box, mark) > first
    with pytest.raises(Conflict):
        await box._client.resume(box.id)
    await box.commands.interrupt(counter)


async def test_idempotency_key(client: AsyncClient, image: str) -> None:
    key = uuid.uuid4().hex
    boxes = await asyncio.gather(
        *(AsyncSandbox.create(image, idempotency_key=key, client=client) for _ in range(3))
    )
    try:
        assert len({box.id for box in boxes}) == 1
        with pytest.raises(Conflict) as caught:
            await AsyncSandbox.create(image, env={"X": "1"}, idempotency_key=key, client=client)
        assert caught.value.code == Code.IDEMPOTENCY_CONFLICT
    finally:
        await boxes[0].kill()


async def test_idempotency_key_after_restart(new_server, runtime_name: str) -> None:
    server: Server = new_server(runtime_name)
    body = {
        "image": {"uri": server.image},
        "entrypoint": ["sleep", "1000"],
        "resourceLimits": {},
        "timeout": 600,
    }
    headers = {"Idempotency-Key": "the-same"}
    first = server.request("POST", "/v1/sandboxes", json=body, headers=headers)
    assert first.status_code == 202
    server.crash()
    server.start()
    again = server.request("POST", "/v1/sandboxes", json=body, headers=headers)
    assert again.json()["id"] == first.json()["id"]
    other = server.request("POST", "/v1/sandboxes", json={**body, "timeout": 700}, headers=headers)
    assert other.status_code == 409


@pytest.mark.parametrize(
    "request_part",
    [
        {"resourceLimits": {"gpu": "1"}},
        {"resourceLimits": {"disk": "1Gi"}},
        {"resourceLimits": {"memroy": "1Gi"}},
        {"resourceLimits": {"memory": "plenty"}},
        {"extensions": {"casulo.isolation": "microvm"}},
        {"secureAccess": True},
        {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/etc"}}]},
        {"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "c", "storage": "1Gi"}}]},
        {"platform": {"os": "windows", "arch": "amd64"}},
        {"metadata": {"bad key": "x"}},
        {"timeout": 59},
    ],
    ids=lambda part: "-".join(map(str, part)) + "-" + str(next(iter(part.values())))[:20],
)
async def test_b087_never_silently_less_than_asked(
    client: AsyncClient, request_part: dict, image: str
) -> None:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        await AsyncSandbox.create(image, request=request_part, client=client)
    assert caught.value.message


async def test_b045_server_answers_while_creates_are_in_flight(client: AsyncClient, image: str) -> None:
    creating = [asyncio.create_task(AsyncSandbox.create(image, client=client)) for _ in range(12)]
    answers = 0
    while not all(task.done() for task in creating):
        await client.health()
        await client.list(page_size=5)
        answers += not all(task.done() for task in creating)
        await asyncio.sleep(0.02)
    boxes = await asyncio.gather(*creating)
    await asyncio.gather(*(box.kill() for box in boxes))
    assert answers >= 3, "they come while the creates go on"


async def test_b045_unreachable_image_is_refused_at_once(client: AsyncClient) -> None:
    with pytest.raises((InvalidRequest, NotFound, Unavailable)) as caught:
        await AsyncSandbox.create("registry.invalid/none:1", client=client)
    assert caught.value.message


async def _counted(box: AsyncSandbox, mark: str) -> int:
    """The counter's last whole number: the loop empties the file before it writes."""
    while not (text := (await box.files.read(f"/tmp/count-{mark}")).strip()):
        await asyncio.sleep(0.01)
    return int(text)


async def _until_exists(box: AsyncSandbox, path: str) -> None:
    for _ in range(200):
        if await box.files.exists(path) and (await box.files.read(path)).strip():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{path} never appeared")
