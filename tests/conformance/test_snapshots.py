# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots as a caller sees them. Files are below ~, which every runtime keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.client.snapshots import Snapshot
from casulo.client.sync import Client, Sandbox
from casulo.model.errors import Code, Conflict, InvalidRequest, NotFound
from support.server import Server

MANIFEST = r"""cd ~
find tree -type d -printf '%y %p %m %U %G %T@\n' -o -printf '%y %p %m %U %G %s %l %T@ %n\n' |
    sed -E 's/([0-9]{10})\.[0-9]+/\1/' | sort
find tree -type f | sort | xargs md5sum"""
"""Kind, path, mode, owner and second of everything; size, target, links, content of what is no directory."""

CYCLE = """
set -e; cd ~; mkdir -p tree; cd tree
echo "file of cycle $N" > file-$N; date +%s%N > file-0; rm -f file-$((N - 1))
mkdir -p folder-$((N - 1))/inner; echo in > folder-$((N - 1))/inner/file; mv folder-$((N - 1)) folder-$N
chmod 0640 file-$N; chown $((1000 + N)):$((2000 + N)) file-$N
ln -sf file-$N link; ln -f file-$N hard-$N; rm -f hard-$((N - 1)); mkdir -p -m 1777 open
"""


@asynccontextmanager
async def restored(client: AsyncClient, snapshot: Snapshot | str) -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(snapshot=snapshot, client=client) as made:
        yield made


async def say(box: AsyncSandbox, command: str, **env: str) -> str:
    return (await box.commands.run(command, env=env)).check().stdout


async def test_files_outlive_their_sandbox(client: AsyncClient, image: str) -> None:
    async with await AsyncSandbox.create(image, env={"A": "source"}, client=client) as source:
        await say(source, "echo kept > ~/kept; echo kept > ~/gone")
        await say(source, "(exec 3> ~/held; echo held >&3; exec sleep 1000) > /dev/null 2>&1 &")
        snapshot = await source.snapshot("mine")
        assert (snapshot.state, snapshot.name, snapshot.sandbox_id) == ("Ready", "mine", source.id)
        await say(source, "rm ~/gone; echo later > ~/later")
    async with restored(client, snapshot) as box:
        assert (await box.refresh()).snapshot_id == snapshot.id and box.info.image is None
        assert box.info.entrypoint == ("tail", "-f", "/dev/null")
        assert await say(box, "cat ~/kept ~/gone ~/held; ls ~/later 2>/dev/null; echo -n $A") == (
            "kept\nkept\nheld\n"
        )
        assert await say(box, "hostname; cat /etc/hostname | tr -d '\n'") != source.id[:8]
    await client.snapshots.delete(snapshot.id)
    with pytest.raises(NotFound) as caught:
        await AsyncSandbox.create(snapshot=snapshot, client=client)
    assert caught.value.code == Code.SNAPSHOT_NOT_FOUND


async def test_b051_five_cycles_of_snapshot_and_restore(client: AsyncClient, image: str) -> None:
    box = await AsyncSandbox.create(image, client=client)
    previous: Snapshot | None = None
    for cycle in range(1, 6):
        await say(box, CYCLE, N=str(cycle))
        before = await say(box, MANIFEST)
        snapshot = await box.snapshot()
        await box.kill()
        if previous is not None:
            await client.snapshots.delete(previous.id)
        box = await AsyncSandbox.create(snapshot=snapshot, client=client)
        assert await say(box, MANIFEST) == before, cycle
        previous = snapshot
    await box.kill()
    assert previous is not None
    await client.snapshots.delete(previous.id)


async def test_b051_five_cycles_of_pause_and_resume(box: AsyncSandbox) -> None:
    for cycle in range(1, 6):
        await say(box, CYCLE, N=str(cycle))
        before = await say(box, MANIFEST)
        await box.pause()
        await box.resume()
        assert await say(box, MANIFEST) == before, cycle


async def test_one_snapshot_makes_many_that_do_not_see_each_other(client: AsyncClient, image: str) -> None:
    async with await AsyncSandbox.create(image, client=client) as source:
        await say(source, "echo one > ~/file")
        snapshot = await source.snapshot()
        await say(source, "echo source > ~/file")
        async with restored(client, snapshot) as first, restored(client, snapshot) as second:
            await say(first, "echo first > ~/file")
            await client.snapshots.delete(snapshot.id)
            assert await say(second, "cat ~/file") == "one\n"
            assert await say(first, "cat ~/file") == "first\n"
            nested = await second.snapshot()
        assert await say(source, "cat ~/file") == "source\n"
    async with restored(client, nested) as box:
        assert await say(box, "cat ~/file") == "one\n"
    await client.snapshots.delete(nested.id)


async def test_the_source_goes_on_meanwhile(box: AsyncSandbox, client: AsyncClient) -> None:
    running = await box.commands.start("for i in $(seq 40); do echo $i >> ~/ticks; sleep 0.05; done")
    made = [await box.snapshot() for _ in range(3)]
    assert (await box.commands.wait(running)).exit_code == 0
    assert (await box.refresh()).state == "Running"
    assert (await say(box, "wc -l < ~/ticks")).strip() == "40"
    for snapshot in made:
        await client.snapshots.delete(snapshot.id)


async def test_what_does_not_fit_is_refused(box: AsyncSandbox, client: AsyncClient) -> None:
    with pytest.raises(NotFound) as unknown:
        await AsyncSandbox.create(snapshot="unknown", client=client)
    assert unknown.value.code == Code.SNAPSHOT_NOT_FOUND
    with pytest.raises(NotFound):
        await client.snapshots.create("unknown")
    with pytest.raises(InvalidRequest):
        await box.snapshot("")
    await box.pause()
    with pytest.raises(Conflict) as paused:
        await box.snapshot()
    assert paused.value.code == Code.SNAPSHOT_INVALID_SOURCE_STATE
    await box.resume()
    snapshot = await box.snapshot()
    with pytest.raises(Conflict) as other:
        await AsyncSandbox.create(snapshot=snapshot, extensions={"casulo.runtime": "other"}, client=client)
    assert other.value.code == Code.SNAPSHOT_INVALID_RESTORE_CONFIG
    with pytest.raises(InvalidRequest):
        await AsyncSandbox.create("image:1", snapshot=snapshot, client=client)
    await client.snapshots.delete(snapshot.id)


async def test_wire_form(box: AsyncSandbox, client: AsyncClient, server: Server) -> None:
    path = f"/v1/sandboxes/{box.id}/snapshots"
    for options in ({"content": b""}, {"json": {}}, {"json": {"name": None}}, {"json": {"name": "wired"}}):
        answer = server.request("POST", path, headers={"Content-Type": "application/json"}, **options)
        assert answer.status_code == 202, answer.text
        body = answer.json()
        assert answer.headers["location"] == f"/v1/snapshots/{body['id']}"
        assert body["status"]["state"] == "Creating" and body["sandboxId"] == box.id
        assert ":null" not in answer.text
    assert server.request("POST", path, json={"name": ""}).status_code == 422
    query = f"/snapshots?sandboxId={box.id}"
    listed = server.request("GET", f"{query}&pageSize=3").json()
    assert len(listed["items"]) == 3 and listed["pagination"]["totalItems"] == 4
    assert [i["name"] for i in server.request("GET", f"{query}&name=wired").json()["items"]] == ["wired"]
    assert server.request("GET", f"{query}&state=nonsense").json()["items"] == []
    for item in server.request("GET", query).json()["items"]:
        while server.request("GET", f"/snapshots/{item['id']}").json()["status"]["state"] == "Creating":
            pass
        assert server.request("DELETE", f"/snapshots/{item['id']}").status_code == 204
    assert server.request("GET", query).json()["items"] == []


def test_sync(server: Server) -> None:
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create(server.image, client=client) as source,
    ):
        source.commands.run("echo sync > ~/file").check()
        snapshot = source.snapshot("sync", wait=True)
        with Sandbox.create(snapshot=snapshot.id, client=client) as box:
            assert box.commands.run("cat ~/file").stdout == "sync\n"
        assert [item.id for item in client.snapshots.list(name="sync", sandbox_id=source.id)] == [snapshot.id]
        client.snapshots.delete(snapshot.id)


async def test_survives_a_crash_of_the_server(new_server, runtime_name: str) -> None:
    server: Server = new_server(runtime_name)
    async with (
        AsyncClient(Connection(server.url, server.api_key)) as client,
        await AsyncSandbox.create(server.image, client=client) as source,
    ):
        await say(source, CYCLE, N="1")
        before = await say(source, MANIFEST)
        snapshot = await source.snapshot("durable")
    server.crash()
    server.start()
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        assert await client.snapshots.get(snapshot.id) == snapshot
        async with restored(client, snapshot) as box:
            assert await say(box, MANIFEST) == before
        await client.snapshots.delete(snapshot.id)


async def test_two_branches_are_compared(client: AsyncClient, server: Server, image: str) -> None:
    async with await AsyncSandbox.create(image, client=client) as source:
        await say(source, "mkdir ~/t; cd ~/t; echo 1 > kept; echo 1 > edited; echo 1 > removed")
        first = await source.snapshot()
        async with restored(client, first) as branch:
            await say(branch, "cd ~/t; echo 2 > edited; rm removed; echo 1 > fresh")
            second = await branch.snapshot()
        try:
            if server.runtime in ("fake", "docker"):
                with pytest.raises(InvalidRequest, match="cannot compare"):
                    await client.snapshots.diff(first.id, second.id)
                return
            told = {change.path: change.kind for change in await client.snapshots.diff(first.id, second.id)}
            home = (await say(source, "echo -n ~")).strip()
            names = {path.removeprefix(f"{home}/t/"): kind for path, kind in told.items() if "/t/" in path}
            assert names["edited"] == "changed" and names["removed"] == "removed" and "kept" not in names
            assert names["fresh"] in ("added", "changed")
            assert not await client.snapshots.diff(second.id, second.id)
        finally:
            for snapshot in (second, first):
                await client.snapshots.delete(snapshot.id)
