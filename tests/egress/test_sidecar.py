# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The egress program beside one workload, in a network namespace that both share."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from casulo.images import daemon
from support.internet import attempts as table
from support.internet import probe
from support.internet.attempts import Places
from support.internet.boxes import results
from support.internet.world import World, run

TOKEN = "token-of-the-sidecar"
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""Root without capabilities: what a sandbox may be at most beside a sidecar."""


@dataclass
class Beside:
    """A namespace on a cable to this host, and the program in it."""

    world: World
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"side{os.getpid() % 100000}"

    @property
    def block(self) -> str:
        return f"10.206.{self.world.block}"

    def lay(self) -> None:
        """Make the namespace and its cable."""
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", f"{self.name}h", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "addr", "add", f"{self.block}.1/30", "dev", f"{self.name}h")
        run("ip", "link", "set", f"{self.name}h", "up")
        run("sysctl", "-qw", f"net.ipv4.conf.{self.name}h.forwarding=1")
        for link in ("lo", "eth0"):
            run("ip", "-n", self.name, "link", "set", link, "up")
        run("ip", "-n", self.name, "addr", "add", f"{self.block}.2/30", "dev", "eth0")
        run("ip", "-n", self.name, "route", "add", "default", "via", f"{self.block}.1")

    def start(self, policy: Any) -> None:
        """Run the program, and wait until it serves."""
        program = str(daemon.egress_binary(daemon.host_architecture()))
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "OPENSANDBOX_EGRESS_RULES": json.dumps(policy),
            "OPENSANDBOX_EGRESS_TOKEN": TOKEN,
            "OPENSANDBOX_EGRESS_POLICY_FILE": str(self.folder / "policy.json"),
            "CASULO_EGRESS_STATE": str(self.folder),
            "CASULO_EGRESS_RESOLVERS": self.world.resolver,
            "CASULO_EGRESS_PUBLIC": self.world.network,
        }
        with (self.folder / "output").open("ab") as output:
            command = ["ip", "netns", "exec", self.name, program, "-sidecar"]
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        deadline = time.monotonic() + 30
        while True:
            try:
                if httpx.get(f"{self.url}/healthz", trust_env=False).text == "ok":
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, (self.folder / "output").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def remove(self) -> None:
        self.kill()
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.name}h"], capture_output=True)

    @property
    def url(self) -> str:
        return f"http://{self.block}.2:18080"

    def call(self, method: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {"OPENSANDBOX-EGRESS-AUTH": TOKEN}
        content = b"" if body is None else json.dumps(body).encode()
        with httpx.Client(base_url=self.url, trust_env=False) as client:
            return client.request(method, "/policy", content=content, headers=headers, **more)

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A program of the workload."""
        words = ["nsenter", f"--net=/run/netns/{self.name}", *WITHOUT_RIGHTS, *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=180)

    def reaches(self, host: str) -> bool:
        return self.inside("curl", "-sSf", "-m", "5", f"http://{host}/").returncode == 0

    def log(self) -> list[str]:
        return (self.folder / "audit.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def beside(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    made = Beside(world, tmp_path_factory.mktemp("sidecar"))
    made.lay()
    try:
        made.start(table.POLICY)
        yield made
    finally:
        made.remove()


def test_nothing_gets_out(beside: Beside, world: World) -> None:
    where = Places(f"{beside.block}.1", f"{beside.block}.6", 22, *(numbers(beside)))
    made = [a for a in table.attempts(world, where) if a.name != "vsock"]  # that is for a seccomp profile
    (beside.folder / "attempts.json").write_text(
        json.dumps([(a.name, a.function, a.arguments) for a in made])
    )
    for name in ("good.test", "half.test", "a.wild.test", "also.good.test"):
        assert beside.inside("getent", "hosts", name).returncode == 0, name
    before = len(world.heard())
    done = beside.inside("/usr/bin/python3", probe.__file__, str(beside.folder / "attempts.json"))
    assert done.returncode == 0, done.stderr
    found = results(done.stdout)
    assert len(found) == len(made)
    out = {name: told["told"] for name, told in found.items() if told["out"]}
    assert not out
    heard = world.heard()[before:]
    assert not [h for h in heard if "denied.test" in h[1] or "evil.test" in h[1] or h[0].startswith("udp")]
    time.sleep(0.3)
    lines = [line for line in beside.log() if '"deny"' in line]
    unexplained = {a.name for a in made if a.why and not any(re.search(a.why, line) for line in lines)}
    assert unexplained == {"b061-gateway-ssh"}, "the gateway is another host here, and private as others are"


def numbers(beside: Beside) -> tuple[int, int]:
    told = json.loads((beside.folder / "ports.json").read_text())
    return int(told["entry"]), int(told["dns"])


def test_what_is_allowed_works(beside: Beside, world: World) -> None:
    ca = ("curl", "-sSf", "-m", "10", "--cacert", str(world.authority))
    assert "good.test" in beside.inside(*ca, "https://good.test/a").stdout
    assert "a.wild.test" in beside.inside(*ca, "https://a.wild.test/").stdout
    assert len(beside.inside(*ca, "http://good.test/bytes/3000000").stdout) == 3000000
    serving = ["nsenter", f"--net=/run/netns/{beside.name}", *WITHOUT_RIGHTS]
    with subprocess.Popen(
        [*serving, "/usr/bin/python3", "-m", "http.server", "8123"], stderr=subprocess.DEVNULL
    ) as web:
        try:
            deadline = time.monotonic() + 20
            while beside.inside("curl", "-sf", "http://127.0.0.1:8123/").returncode:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert httpx.get(f"http://{beside.block}.2:8123/", trust_env=False).status_code == 200
        finally:
            web.kill()


def test_the_api(beside: Beside) -> None:
    with httpx.Client(base_url=beside.url, trust_env=False) as plain:
        denied = plain.get("/policy")
        assert denied.status_code == 401 and denied.headers["content-type"].startswith("text/plain")
        assert plain.put("/credential-vault", headers={"OPENSANDBOX-EGRESS-AUTH": TOKEN}).status_code == 412
    rules = [{"action": "allow", "target": "good.test"}]
    told = beside.call("PUT", {"egress": rules}).json()
    assert (told["mode"], told["enforcementMode"]) == ("enforcing", "dns+nft")
    assert told["policy"] == {"defaultAction": "deny", "egress": rules}
    assert (beside.reaches("good.test"), beside.reaches("other.test")) == (True, False)
    patch = [{"action": "allow", "target": "other.test"}, {"target": "GOOD.test"}]
    assert [r["action"] for r in beside.call("PATCH", patch).json()["policy"]["egress"]] == ["allow", "deny"]
    assert (beside.reaches("good.test"), beside.reaches("other.test")) == (False, True)
    assert beside.call("DELETE", ["nothing.test"]).json()["reason"] == "no matching targets found"
    assert len(beside.call("DELETE", ["good.test."]).json()["policy"]["egress"]) == 1
    for method, body, status in (
        ("PATCH", [], 400),
        ("DELETE", [], 400),
        ("PUT", {"egress": [{"target": "*"}]}, 400),
        ("PUT", {"egress": [{"action": "permit", "target": "a.test"}]}, 400),
        ("PUT", {"egress": [{"target": f"n{n}.test"} for n in range(4097)]}, 413),
        ("OPTIONS", None, 405),
    ):
        answer = beside.call(method, body)
        assert answer.status_code == status, f"{method} {str(body)[:60]}: {answer.text}"
        assert answer.headers["content-type"].startswith("text/plain")
    assert beside.call("GET").json()["policy"]["egress"] == patch[:1]


def test_killed_it_leaves_everything_closed_and_comes_back_with_its_policy(
    beside: Beside, world: World
) -> None:
    beside.call("PUT", {"egress": [{"action": "allow", "target": "good.test"}]})
    assert beside.reaches("good.test")
    beside.kill()
    assert not any(beside.reaches(host) for host in ("good.test", world.at(80), world.at(81)))
    beside.start({"defaultAction": "allow"})  # the file has what was set since
    assert (beside.reaches("good.test"), beside.reaches("other.test")) == (True, False)
    told = beside.call("PUT", None).json()
    assert (told["mode"], bool(told["reason"])) == ("deny_all", True)
    assert not beside.reaches("good.test")
    assert beside.process is not None
    beside.process.send_signal(signal.SIGTERM)
    assert beside.process.wait(20) == 0
