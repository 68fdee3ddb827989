# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Snapshots of sandboxes that were started from images: the image below them stays, and stays in force."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.client.snapshots import Snapshot
from casulo.model.errors import CasuloError, Code, RuntimeFailure
from support.images import ImageParts, LayoutWriter, archive, busybox, folder, member
from support.server import Server

CONFIG = {
    "Cmd": ["/bin/sleep", "600"],
    "Env": ["GREETING=from the image", "PATH=/bin"],
    "WorkingDir": "/data",
    "User": "app",
}
BASE = archive(
    folder("data", mode=0o777),
    member("data/deleted", b"1"),
    member("data/changed", b"2"),
    folder("data/emptied", mode=0o777),
    member("data/emptied/old", b"3"),
    folder("opt"),
    member("opt/base", b"base"),
)
CHANGES = """
set -e; cd /data
rm deleted; echo more >> changed; rm -r emptied; mkdir emptied; touch emptied/new
echo x > one; ln one two; ln -s /etc/passwd outward; ln -s one inward; mkfifo pipe
dd if=/dev/zero of=holes bs=1 count=1 seek=50M 2>/dev/null
chmod 4755 one; mkdir closed; chmod 0 closed; chmod 711 /data
"""
TREE = """cd /data && find . -exec stat -c '%n %F %a %u %g %h %s %Y' {} + | sort &&
readlink inward && readlink outward"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LayoutWriter:
    return LayoutWriter(tmp_path_factory.mktemp("layout") / "oci")


@pytest.fixture(scope="module")
def image_server(new_module_server: Any, written: LayoutWriter) -> Server:
    server: Server = new_module_server("local", f'[images]\nsources = ["{written.folder}"]\n')
    return server


@pytest.fixture
async def client(image_server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(image_server.url, image_server.api_key)) as made:
        yield made
        await asyncio.to_thread(image_server.delete_all)


async def root(box: AsyncSandbox, script: str) -> str:
    """What a script of the sandbox's root prints."""
    return (await box.commands.run(["sh", "-c", script], uid=0, gid=0)).check().stdout


async def source_of(client: AsyncClient, written: LayoutWriter, tag: str) -> AsyncSandbox:
    written.add(
        tag,
        ImageParts(
            [
                busybox("find", "stat", "mkfifo", "readlink", "dd", "ln"),
                BASE,
                archive(member("tag", tag.encode())),
            ],
            CONFIG,
        ),
    )
    return await AsyncSandbox.create(written.reference(tag), client=client)


async def restored(client: AsyncClient, snapshot: Snapshot) -> AsyncSandbox:
    entrypoint = ["/bin/sleep", "600"]
    return await AsyncSandbox.create(snapshot=snapshot, entrypoint=entrypoint, client=client)


async def test_whatever_a_sandbox_did_to_its_files_is_kept(
    client: AsyncClient, written: LayoutWriter, image_server: Server
) -> None:
    async with await source_of(client, written, "kept") as source:
        await root(source, CHANGES)
        before = await root(source, TREE)
        snapshot = await source.snapshot()
    async with await restored(client, snapshot) as box:
        assert await root(box, TREE) == before
        assert await root(box, "cat changed opt/base 2>/dev/null; cat /opt/base; ls emptied") == (
            "2more\nbasenew\n"
        )
        assert int(await root(box, "stat -c %b /data/holes")) < 1000, "holes stay holes"
        assert (await box.commands.run(["sh", "-c", "echo $GREETING; pwd; id -un"])).stdout == (
            "from the image\n/data\napp\n"
        )
        assert await root(box, "cat /etc/hostname") == f"casulo-{box.id[:8]}\n"
        hosts = await root(box, "cat /etc/hosts")
        assert box.id[:8] in hosts and source.id[:8] not in hosts
    await client.snapshots.delete(snapshot.id)
    assert not list((image_server.data_dir / "snapshots" / "layers").iterdir())


async def test_users_that_a_sandbox_added_are_known(client: AsyncClient, written: LayoutWriter) -> None:
    async with await source_of(client, written, "users") as source:
        await root(source, "sed -i 's/^app:.*/app:x:4321:4321::\\/data:\\/bin\\/sh/' /etc/passwd")
        snapshot = await source.snapshot()
    async with await restored(client, snapshot) as box:
        assert (await box.commands.run(["id", "-u"])).stdout == "4321\n"
    await client.snapshots.delete(snapshot.id)


async def test_the_image_below_stays_until_the_last_needs_it(
    client: AsyncClient, written: LayoutWriter, image_server: Server
) -> None:
    async with await source_of(client, written, "moving") as source:
        snapshot = await source.snapshot()
    # The name now stands for something else, and everything unused is removed.
    written.add("moving", ImageParts([busybox("cat"), archive(member("opt", b"other"))], CONFIG))
    async with await AsyncSandbox.create(written.reference("moving"), client=client):
        pass
    record = image_server.data_dir / "snapshots" / "records" / snapshot.id
    refused = _osb(image_server, "image", "rm", json.loads(record.read_text())["image"])
    assert refused.returncode != 0 and f"in use by snapshot-{snapshot.id}" in refused.stderr
    _osb(image_server, "image", "prune", "--all")
    box = await restored(client, snapshot)
    await client.snapshots.delete(snapshot.id)
    _osb(image_server, "image", "prune", "--all")
    assert await root(box, "cat /opt/base") == "base"
    nested = await box.snapshot()
    await box.kill()
    again = await restored(client, nested)
    assert await root(again, "cat /opt/base") == "base"
    await again.kill()
    await client.snapshots.delete(nested.id)
    _osb(image_server, "image", "prune", "--all")
    assert not list((image_server.data_dir / "images" / "holds").iterdir())


async def test_files_of_other_users_are_not_restored(
    client: AsyncClient, written: LayoutWriter, image_server: Server
) -> None:
    async with await source_of(client, written, "others") as source:
        snapshot = await source.snapshot()
    record = image_server.data_dir / "snapshots" / "records" / snapshot.id
    body = json.loads(record.read_text())
    record.write_text(json.dumps({**body, "ids": "user"}))
    with pytest.raises(CasuloError) as failure:
        await restored(client, snapshot)
    assert failure.value.code == Code.SNAPSHOT_INVALID_RESTORE_CONFIG
    await client.snapshots.delete(snapshot.id)


async def test_links_never_lead_the_copier_out(
    client: AsyncClient, written: LayoutWriter, tmp_path: Path, image_server: Server
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    async with await source_of(client, written, "hostile") as source:
        await root(source, f"ln -s {secret} /data/leak; ln -s {tmp_path} /data/way; ln -s / /data/up")
        snapshot = await source.snapshot()
    (layer,) = (image_server.data_dir / "snapshots" / "layers").iterdir()
    assert os.readlink(layer / "data" / "leak") == str(secret)
    assert (layer / "data" / "way").is_symlink() and (layer / "data" / "up").is_symlink()
    await client.snapshots.delete(snapshot.id)
    assert secret.read_text() == "of the host"


async def test_a_tree_that_is_deeper_than_paths_are_long(client: AsyncClient, image_server: Server) -> None:
    dig = "import os\nfor _ in range(3000): os.mkdir('a'); os.chdir('a')"
    async with await AsyncSandbox.create("host", client=client) as source:
        (await source.commands.run(["python3", "-c", dig], cwd="/tmp")).check()
        with pytest.raises(RuntimeFailure, match="File name too long"):
            await source.snapshot()
        assert (await source.commands.run("echo goes on")).stdout == "goes on\n"
    for item in (await client.snapshots.list(sandbox_id=source.id)).items:
        await client.snapshots.delete(item.id)
    for folder_ in ("sandboxes", "snapshots/tmp", "snapshots/layers"):
        assert not list((image_server.data_dir / folder_).iterdir())


async def test_b053_the_policy_goes_on(client: AsyncClient, image_server: Server) -> None:
    policy = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "one.test"}]}
    request = {"networkPolicy": policy}
    async with await AsyncSandbox.create("host", request=request, client=client) as source:
        path = f"/v1/sandboxes/{source.id}/networkpolicy"
        rules = [{"action": "allow", "target": "two.test"}]
        held = image_server.request("PATCH", path, json=rules).json()["policy"]
        assert {rule["target"] for rule in held["egress"]} == {"one.test", "two.test"}
        assert (await source.commands.run("cat /etc/resolv.conf")).stdout.startswith("nameserver 10.")
        snapshot = await source.snapshot()
    async with await AsyncSandbox.create(snapshot=snapshot, client=client) as box:
        told = image_server.request("GET", f"/v1/sandboxes/{box.id}/networkpolicy").json()
        assert told["policy"] == held
        assert (await box.commands.run("getent hosts elsewhere.test")).exit_code != 0
    async with await AsyncSandbox.create(
        snapshot=snapshot, request={"networkPolicy": {"defaultAction": "deny"}}, client=client
    ) as box:
        told = image_server.request("GET", f"/v1/sandboxes/{box.id}/networkpolicy").json()
        assert not told["policy"].get("egress")
    await client.snapshots.delete(snapshot.id)


def _osb(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "casulo.cli", *words]
    environment = {**os.environ, "CASULO_HOME": str(server.data_dir)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
