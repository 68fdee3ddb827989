# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The life of a policy: set, changed, kept over restarts, pauses and snapshots, refused when it is none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.internet.boxes import create, make_docker_server, make_server, reach
from support.internet.world import World
from support.server import Server

RULES = [{"action": "allow", "target": "good.test"}, {"action": "allow", "target": "*.wild.test"}]
POLICY = {"defaultAction": "deny", "egress": RULES}


@pytest.fixture(scope="module")
def server(ground: tuple[Server, str]) -> Server:
    """One of those that the tests share."""
    return ground[0]


EVERYWHERE = pytest.mark.parametrize("ground", ["container", "docker"], indirect=True)
"""For what each way to connect a sandbox has to do by itself."""


@EVERYWHERE
async def test_the_official_sequence(server: Server) -> None:
    """Section 5.4 of the protocol: deny by default with one name, flipped by a patch, taken back."""
    box = create(server, {"egress": [{"action": "allow", "target": "pypi.org"}]})
    assert await reach(box, "pypi.org", "www.github.com") == [True, False]
    patch = [{"action": "allow", "target": "www.github.com"}, {"action": "deny", "target": "pypi.org"}]
    assert box.policy("PATCH", patch)["policy"]["egress"] == patch
    assert await reach(box, "pypi.org", "www.github.com") == [False, True]
    told = box.policy("DELETE", ["www.github.com", "nothing.test"])
    assert told["policy"] == {"defaultAction": "deny", "egress": patch[1:]}
    assert await reach(box, "www.github.com") == [False]
    again = box.policy("DELETE", ["www.github.com"])
    assert (again["policy"], again["reason"]) == (told["policy"], "no matching targets found")
    box.delete()


@pytest.mark.parametrize("place", ["local", "docker"])
async def test_b053_pause_snapshot_and_restart_keep_the_policy(
    world: World, tmp_path: Path, request: pytest.FixtureRequest, place: str
) -> None:
    if place == "docker":
        server = make_docker_server(tmp_path / "server", world, request.getfixturevalue("engine"))
    else:
        server = make_server(tmp_path / "server", world)
    server.start()
    try:
        box = create(server, POLICY)
        box.policy("PATCH", [{"action": "allow", "target": "other.test"}])
        names = ("good.test", "a.wild.test", "other.test", "evil.test")
        wanted = [True, True, True, False]
        server.request("POST", f"/v1/sandboxes/{box.id}/pause")
        server.request("POST", f"/v1/sandboxes/{box.id}/resume")
        assert await reach(box, *names) == wanted
        taken = server.request("POST", f"/v1/sandboxes/{box.id}/snapshots", json={}).json()["id"]
        while (state := server.request("GET", f"/v1/snapshots/{taken}").json()["status"])[
            "state"
        ] == "Creating":
            time.sleep(0.05)
        assert state["state"] == "Ready", state
        restored = create(server, None, image=None, snapshotId=taken, extensions={})
        assert restored.policy()["policy"] == box.policy()["policy"]
        assert await reach(restored, *names) == wanted
        server.crash()
        server.start()
        assert box.policy()["policy"]["egress"][0]["target"] == "other.test"
        assert await reach(box, *names) == wanted
    finally:
        server.delete_all()
        server.stop()


def _settled(server: Server, snapshot: str) -> str:
    while True:
        state = server.request("GET", f"/v1/snapshots/{snapshot}").json()["status"]["state"]
        if state != "Creating":
            return str(state)
        time.sleep(0.05)


@EVERYWHERE
async def test_from_the_first_packet(server: Server) -> None:
    """The entrypoint tries at once, before anybody could have changed anything."""
    script = "curl -s -m 3 http://good.test/ >/tmp/good; curl -s -m 3 http://evil.test/ >/tmp/evil; sleep 600"
    box = create(server, POLICY, entrypoint=["sh", "-c", script])
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        told = await inside.commands.run("sleep 2; cat /tmp/good; echo; wc -c < /tmp/evil", timeout=20)
    assert '"good.test"' in told.stdout and told.stdout.strip().endswith("0")
    box.delete()


async def test_a_changed_policy_ends_what_it_denies(egress_server: Server) -> None:
    box = create(egress_server, {"egress": [{"action": "allow", "target": "echo.test"}]})
    code = (
        "import socket; s = socket.create_connection(('echo.test', 7), 5); s.sendall(b'one\\n'); s.recv(9);"
        "print('open', flush=True); s.settimeout(10); print(s.recv(9))"
    )
    async with AsyncClient(Connection(egress_server.url, egress_server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        started = await inside.commands.start(["python3", "-c", code])
        while "open" not in (await inside.commands.logs(started)).text:
            time.sleep(0.1)
        box.policy("PUT", {})
        ended = await inside.commands.wait(started, timeout=5)
    assert ended.exit_code != 0
    assert box.logged("the policy changed")
    box.delete()


async def test_a_sandbox_without_a_policy_can_be_given_one(egress_server: Server) -> None:
    box = create(egress_server)
    assert box.policy()["mode"] == "allow_all"
    assert box.policy("PUT", POLICY)["mode"] == "enforcing"
    assert await reach(box, "good.test", "evil.test") == [True, False]
    assert box.policy("PUT", None)["mode"] == "deny_all"
    assert await reach(box, "good.test") == [False]
    box.delete()


def test_the_default_of_the_server(world: World, tmp_path) -> None:
    settings = world.settings.replace("[egress]\n", '[egress]\ndefault = "deny"\n')
    server = make_server(tmp_path / "server", world)
    server.extra = server.extra.replace(world.settings, settings)
    server.start()
    try:
        assert create(server).policy()["mode"] == "deny_all"
        assert create(server, {"defaultAction": "allow"}).policy()["mode"] == "allow_all"
    finally:
        server.delete_all()
        server.stop()


_TARGETS = ("*", "a.*.test", "**.test", "", "1.2.3", "a b.test", "preset:pipy", "10.0.0.0/33", "::1")
_RULES: list[dict[str, Any]] = [
    {"action": "permit"},
    {"action": "allow", "port": 443},
    {"action": "allow", "ports": [0]},
    {"action": "allow", "ports": ["9-1"]},
    {"action": "allow", "ports": [443], "protocols": ["udp"]},
    {"action": "allow", "protocols": ["icmp"]},
    {"action": "allow", "ports": [443], "methods": ["GET"]},
    {"action": "allow", "paths": ["open"]},
]
NO_POLICIES: list[Any] = [
    *({"egress": [{"action": "allow", "target": target}]} for target in _TARGETS),
    *({"egress": [{"target": "a.test", **rule}]} for rule in _RULES),
    {"defaultAction": "maybe"},
    {"egress": {}},
    [],
]


def test_b057_what_is_no_policy_is_refused(egress_server: Server) -> None:
    box = create(egress_server, {})
    for policy in NO_POLICIES:
        answer = egress_server.request("PUT", f"/v1/sandboxes/{box.id}/networkpolicy", json=policy)
        assert answer.status_code == 400, f"{policy}: {answer.text}"
        assert answer.json()["message"]
        assert box.policy()["mode"] == "deny_all"
    box.delete()


def test_too_many_rules(egress_server: Server) -> None:
    box = create(egress_server, {})
    rules = [{"action": "allow", "target": f"n{n}.test"} for n in range(4097)]
    url = f"/v1/sandboxes/{box.id}/networkpolicy"
    assert egress_server.request("PUT", url, json={"egress": rules}).status_code == 413
    assert egress_server.request("PUT", url, json={"egress": rules[:4096]}).status_code == 200
    box.delete()


@pytest.mark.parametrize("ground", ["container", "gvisor", "docker"], indirect=True)
async def test_the_same_api_through_the_daemon(server: Server, ground: tuple[Server, str]) -> None:
    """What official clients do that know a direct endpoint only; inside, the token is all that guards it."""
    box, other = create(server, POLICY, ground[1]), create(server, {}, ground[1])
    daemon = server.request("GET", f"/v1/sandboxes/{box.id}/endpoints/44772").json()
    token = server.request("GET", f"/v1/sandboxes/{box.id}/endpoints/18080").json()["headers"]
    with httpx.Client(
        base_url=f"http://{daemon['endpoint']}/proxy/18080", headers=daemon["headers"]
    ) as plain:
        assert plain.get("/healthz").text == "ok"
        assert plain.get("/policy").status_code == 401
        told = plain.patch("/policy", json=[{"action": "allow", "target": "other.test"}], headers=token)
        assert told.json()["policy"]["egress"][0]["target"] == "other.test"
        assert plain.get("/../../../policy", headers=token).status_code in (400, 404)
    assert box.policy()["policy"]["egress"][0]["target"] == "other.test"
    assert await reach(box, "other.test") == [True]
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        for path, code in (("/policy", "401"), ("/v1/sandboxes", "404"), ("/healthz", "200")):
            url = f"http://{box.gateway}:18080{path}"
            said = await inside.commands.run(f"curl -s -m 5 -o /dev/null -w '%{{http_code}}' {url}")
            assert said.stdout == code, path
        foreign = f"http://{other.gateway}:18080/policy"
        assert not (await inside.commands.run(f"curl -sS -m 5 {foreign}")).ok
        theirs = next(iter(token.values()))
        using = f"curl -s -m 5 -H 'OPENSANDBOX-EGRESS-AUTH: {theirs}' http://{other.gateway}:18080/policy"
        stranger = await AsyncSandbox.connect(other.id, client=client)
        assert "missing or wrong" in (await stranger.commands.run(using)).stdout
    box.delete()
    other.delete()


@EVERYWHERE
def test_the_api_at_port_18080(server: Server) -> None:
    box = create(server, POLICY)
    for proxied in ("false", "true"):
        path = f"/v1/sandboxes/{box.id}/endpoints/18080?use_server_proxy={proxied}"
        told = server.request("GET", path).json()
        assert told["endpoint"].endswith("/18080")
        with httpx.Client(base_url=f"http://{told['endpoint']}", trust_env=False) as plain:
            assert plain.get("/healthz").text == "ok"
            denied = plain.get("/policy")
            assert denied.status_code == 401 and denied.headers["content-type"].startswith("text/plain")
            plain.headers.update(told["headers"])
            assert plain.get("/policy").json()["policy"]["egress"] == RULES
            wrong = plain.patch("/policy", json=[])
            assert wrong.status_code == 400 and wrong.headers["content-type"].startswith("text/plain")
            patched = plain.patch("/policy", json=[{"action": "deny", "target": "x.test"}])
            assert patched.json()["policy"]["egress"][0] == {"action": "deny", "target": "x.test"}
            removed = plain.request("DELETE", "/policy", json=["x.test"])
            assert removed.json()["policy"]["egress"] == RULES
            assert plain.request("OPTIONS", "/policy").status_code in (200, 405)
            emptied = plain.put("/policy", content=b"").json()
            assert emptied["mode"] == "deny_all" and emptied["reason"]
            plain.put("/policy", json=POLICY)
    box.delete()


def test_the_command_line(egress_server: Server) -> None:
    box = create(egress_server, POLICY)

    def osb(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "casulo.cli", "--domain", egress_server.domain]
        done = subprocess.run(
            [*command, "--api-key", egress_server.api_key, "egress", *words],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout

    assert '"preset:pypi"' in osb("allow", box.id, "preset:pypi", "-p", "443")
    assert "allowed by allow pypi.org:443" in osb("test", box.id, "https://pypi.org/")
    assert "denied by default deny" in osb("test", box.id, "http://pypi.org/", code=1)
    assert "preset:pypi" not in osb("rm", box.id, "preset:pypi")
    assert '"deny"' in osb("patch", box.id, "--rule", "deny=good.test")
    assert osb("log", box.id) == ""
    assert '"egress": []' in osb("learn", box.id)
    box.delete()


async def test_a_member_of_a_pool_gets_its_policy_and_certificate_at_hand_out(
    world: World, tmp_path: Path
) -> None:
    pool = "[pools.named.p]\nimage = 'host'\nmin = 1\nmax = 1\n"
    server = make_server(tmp_path / "server", world, pool)
    server.start()
    try:
        while server.request("GET", "/v1/pools/p").json()["status"]["available"] != 1:
            time.sleep(0.05)
        box = create(server, POLICY, credentialProxy={"enabled": True}, resourceLimits={})
        assert 'draws{outcome="hit"} 1.0' in server.request("GET", "/metrics").text
        assert await reach(box, "good.test", "a.wild.test", "evil.test") == [True, True, False]
        assert box.logged("evil.test")
        server.crash()
        server.start()
        assert await reach(box, "good.test", "evil.test") == [True, False]
        box.delete()
    finally:
        server.delete_all()
        server.stop()
