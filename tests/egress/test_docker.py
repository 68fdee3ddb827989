# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Containers under policies, when somebody does to them what only the engine's owner can do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from support.engine import Engine
from support.internet.boxes import Boxed, create, make_docker_server, network_of, reach
from support.internet.world import World
from support.server import Server

POLICY = {"egress": [{"action": "allow", "target": "good.test"}]}


@pytest.fixture(scope="module")
def server(world: World, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that tests may end, if they start it again."""
    made = make_docker_server(tmp_path_factory.mktemp("server"), world, engine).start()
    yield made
    made.delete_all()
    made.stop()


def container(box: Boxed, engine: Engine) -> str:
    names = engine.docker("ps", "--all", "--format", "{{.Names}}").split()
    return next(name for name in names if name.endswith(box.id))


def tried(box: Boxed, engine: Engine, name: str) -> bool:
    """Whether a program that the engine's owner starts in the container gets an answer from `name`."""
    command = ["docker", "--host", engine.url, "exec", container(box, engine)]
    request = ["curl", "-sSf", "-m", "4", f"http://{name}/"]
    return subprocess.run([*command, *request], capture_output=True, timeout=60).returncode == 0


def interfaces(box: Boxed, engine: Engine) -> set[str]:
    """What there is in the container's network."""
    command = ["nsenter", f"--net={network_of(box, engine)}", "ip", "-br", "link"]
    told = subprocess.check_output(command, text=True, timeout=20)
    return {line.partition(" ")[0].partition("@")[0] for line in told.splitlines() if "UP" in line}


def test_what_the_engines_owner_starts_is_held_too(server: Server, engine: Engine) -> None:
    box = create(server, POLICY)
    assert (tried(box, engine, "good.test"), tried(box, engine, "evil.test")) == (True, False)
    engine.docker("pause", container(box, engine))
    engine.docker("unpause", container(box, engine))
    assert (tried(box, engine, "good.test"), tried(box, engine, "evil.test")) == (True, False)


@pytest.mark.parametrize("words", [["restart", "--time", "0"], ["kill"]], ids=["restart", "kill"])
def test_restarted_behind_our_back_it_is_connected_to_nothing(
    server: Server, engine: Engine, world: World, words: list[str]
) -> None:
    """Its daemon waits for a document that nobody sends, and its new network is empty."""
    box = create(server, POLICY)
    name = container(box, engine)
    engine.docker(*words, name)
    if words[0] != "restart":
        engine.docker("start", name)
    assert interfaces(box, engine) <= {"lo"}
    before = len(world.heard())
    assert not any(
        tried(box, engine, host) for host in ("good.test", "evil.test", world.at(80), world.at(81))
    )
    assert world.heard()[before:] == []
    deadline = time.monotonic() + 30
    while (state := server.request("GET", f"/v1/sandboxes/{box.id}").json()["status"]["state"]) == "Running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert state in ("Failed", "Terminated")


async def test_a_policy_comes_later_and_holds_over_crashes_of_everything(
    server: Server, engine: Engine, world: World
) -> None:
    box = create(server)
    assert not tried(box, engine, "good.test"), "the small internet is private to a sandbox without a policy"
    assert box.policy("PUT", POLICY)["mode"] == "enforcing"
    assert await reach(box, "good.test", "evil.test") == [True, False]
    server.crash()
    assert (tried(box, engine, "good.test"), tried(box, engine, world.at(81))) == (True, False)
    server.start()
    assert box.policy()["policy"]["egress"] == POLICY["egress"]
    assert await reach(box, "good.test", "evil.test", world.at(81)) == [True, False, False]


def test_nothing_is_left(world: World, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> None:
    server = make_docker_server(tmp_path_factory.mktemp("server"), world, engine).start()
    box = create(server, POLICY)
    tables = subprocess.check_output(["nft", "list", "tables"], text=True)
    box.delete()
    server.delete_all()
    server.stop()
    gone = set(tables.splitlines()) - set(
        subprocess.check_output(["nft", "list", "tables"], text=True).splitlines()
    )
    assert len([line for line in gone if "_docker" in line or "_egress" in line]) >= 2
    assert not list((server.data_dir / "docker" / "cables").iterdir())
