# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What others do to containers behind the server's back is told as it is."""

from __future__ import annotations

import asyncio

import pytest

from casulo.client import CasuloError
from support.dockered import Place, said
from support.engine import IMAGE


async def _becomes(place: Place, sandbox_id: str, state: str) -> None:
    for _ in range(600):
        if (await place.client.get(sandbox_id)).state == state:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"it is {(await place.client.get(sandbox_id)).state}, not {state}")


async def test_a_container_that_somebody_pauses_is_paused(place: Place) -> None:
    async with await place.start() as box:
        name = place.container(box)
        for _ in range(2):
            place.engine.docker("pause", name)
            await _becomes(place, box.id, "Paused")
            place.engine.docker("unpause", name)
            await _becomes(place, box.id, "Running")
        await box.pause()
        place.engine.docker("unpause", name)
        await _becomes(place, box.id, "Running")
        assert await said(box, "echo", "awake") == "awake"


async def test_a_container_that_somebody_renames_gets_its_name_back(place: Place) -> None:
    box = await place.start()
    name = place.container(box)
    place.engine.docker("rename", name, "somebody-elses")
    assert (await place.client.get(box.id)).state == "Running"
    await box.pause()
    assert (await box.refresh()).state == "Paused"
    await box.resume()
    assert await said(box, "echo", "here") == "here"
    place.engine.docker("rename", name, "somebody-elses")
    await box.kill()
    assert not [each for each in place.engine.ours()["containers"] if each in (name, "somebody-elses")]


async def test_changes_while_no_server_runs_are_found_out(place: Place) -> None:
    paused, renamed, killed = await asyncio.gather(*(place.start() for _ in range(3)))
    names = [place.container(box) for box in (paused, renamed, killed)]
    place.server.crash()
    place.engine.docker("pause", names[0])
    place.engine.docker("rename", names[1], "while-it-was-away")
    place.engine.docker("kill", names[2])
    place.server.start()
    for box, state in ((paused, "Paused"), (renamed, "Running"), (killed, "Failed")):
        answer = place.server.request("GET", f"/v1/sandboxes/{box.id}").json()
        assert answer["status"]["state"] == state, answer
        assert place.server.request("DELETE", f"/v1/sandboxes/{box.id}").status_code == 204
    assert not [each for each in place.engine.ours()["containers"] if each in (*names, "while-it-was-away")]


async def test_holes_are_not_written_in_full(place: Place) -> None:
    async with await place.start(IMAGE) as box:
        assert (await box.commands.run("truncate -s 1T /huge && test $(du -k /huge | cut -f1) -lt 1024")).ok
        with pytest.raises(CasuloError, match="sparse"):
            await box.snapshot("huge")
        assert (await box.refresh()).state == "Running"
