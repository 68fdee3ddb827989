# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Forks: children that begin where a running sandbox stands, and know whose they are."""

from __future__ import annotations

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import Conflict, InvalidRequest, NotFound


@pytest.fixture(params=["fake", "local"])
def place(request: pytest.FixtureRequest) -> str:
    """Copying is a matter of snapshots, which each runtime has tests of its own for."""
    return str(request.param)


async def test_children_have_their_parents_files_and_a_family_tree(client: AsyncClient) -> None:
    parent = await AsyncSandbox.create(
        "host", env={"A": "1", "B": "1"}, metadata={"team": "x"}, client=client
    )
    await parent.commands.run("echo parent > ~/whose")
    children = await parent.fork(3, env={"B": "2"})
    family = [parent, *children]
    try:
        assert len({box.id for box in family}) == 4
        for child in children:
            assert (await child.commands.run("cat ~/whose; echo $A $B")).stdout == "parent\n1 2\n"
            info = await child.refresh()
            assert info.metadata == {"team": "x", "casulo.parent": parent.id}
            assert info.lineage == (parent.id,)
            await child.commands.run(f"echo {child.id} > ~/whose")
        assert (await parent.commands.run("cat ~/whose")).stdout == "parent\n"
        found = await client.list(metadata={"casulo.parent": parent.id})
        assert {one.id for one in found} == {child.id for child in children}
        (grandchild,) = await children[0].fork()
        family.append(grandchild)
        await children[0].kill()
        assert (await grandchild.refresh()).lineage == (children[0].id, parent.id)
        assert (await grandchild.commands.run("cat ~/whose")).stdout == f"{children[0].id}\n"
        assert not (await client.snapshots.list()).items
    finally:
        for box in family:
            await box.kill()


async def test_what_cannot_be_forked_is_refused(client: AsyncClient) -> None:
    box = await AsyncSandbox.create("host", client=client)
    for count in (0, 65):
        with pytest.raises(InvalidRequest):
            await box.fork(count)
    await box.pause()
    with pytest.raises(Conflict):
        await box.fork()
    assert not (await client.snapshots.list()).items
    await box.kill()
    with pytest.raises(NotFound):
        await box.fork()
