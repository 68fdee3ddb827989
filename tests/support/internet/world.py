# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The namespace of the small internet, its cable to this host, its certificates, and what is in it.

198.18.<n>.53   the host's resolver              198.18.<n>.80   web server of several names
198.18.<n>.54   a rogue resolver                 198.18.<n>.81   another web server
198.18.<n>.44   a resolver over HTTPS            198.18.<n>.90   echo servers on odd ports
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]


def run(*command: str) -> None:
    """Run a tool of the host; its words are part of the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"


@dataclass
class World:
    """One namespace; `start` makes it, `stop` leaves nothing of it."""

    folder: Path
    block: int
    prefix: str = "198.18"
    process: subprocess.Popen[str] | None = None

    @property
    def name(self) -> str:
        return f"tnet{os.getpid() % 100000}x{self.block}"

    def at(self, host: int) -> str:
        """An address of this internet."""
        return f"{self.prefix}.{self.block}.{host}"

    @property
    def network(self) -> str:
        return f"{self.prefix}.{self.block}.0/24"

    @property
    def resolver(self) -> str:
        return self.at(53)

    @property
    def authority(self) -> Path:
        """The certificate that clients have to trust."""
        return self.folder / "ca.pem"

    @property
    def files(self) -> Path:
        """What the web servers show below /mirror."""
        return self.folder / "mirror"

    @property
    def secrets(self) -> Path:
        """Where files may be that are the source of a credential."""
        return self.folder / "secrets"

    @property
    def settings(self) -> str:
        """The part of a server's configuration that makes this internet its internet."""
        return (
            f'[egress]\nresolvers = ["{self.resolver}"]\npublic = ["{self.network}"]\n'
            f'doh = ["doh.test", "{self.at(44)}"]\n'
            f'[vault]\nextra_roots = "{self.authority}"\nfiles = ["{self.secrets}"]\n'
        )

    def names(self) -> dict[str, list[tuple[str, str]]]:
        """What the resolvers know."""
        shared, other = [("A", self.at(80))], [("A", self.at(81))]
        big = [("A", self.at(100 + n)) for n in range(40)]
        return {
            "good.test": shared,
            "also.good.test": shared,
            "api.good.test": shared,
            "evil.test": shared,
            "front.evil.test": shared,
            "other.test": other,
            "*.wild.test": shared,
            "wild.test": shared,
            "notwild.test": shared,
            "wild.test.evil.test": shared,
            "xn--bcher-kva.test": shared,
            "alias.test": [("CNAME", "good.test")],
            "echo.test": [("A", self.at(90))],
            "rebind.test": [("A", "10.1.2.3"), ("A", "127.0.0.1"), ("A", "169.254.169.254")],
            "half.test": [("A", "192.168.7.7"), ("A", self.at(80))],
            "big.test": big,
            "text.test": [("TXT", "x" * 900), ("A", self.at(80))],
            "doh.test": [("A", self.at(44))],
            "ech.test": [("HTTPS", self.at(81)), ("A", self.at(80))],
            "six.test": [("AAAA", "2001:db8::80")],
            "down.test": [("A", self.at(99))],
            "credential-vault-e2e.opensandbox.test": shared,
            "pypi.org": shared,
            "files.pythonhosted.org": shared,
            "www.github.com": shared,
            "github.com": shared,
        }

    def start(self) -> World:
        """Make namespace and cable, then start the servers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files.mkdir(exist_ok=True)
        self.secrets.mkdir(exist_ok=True)
        self._certificates()
        self._cable()
        plan: dict[str, Any] = {
            "resolvers": [self.resolver, self.at(54)],
            "names": self.names(),
            "certificate": str(self.folder / "server.pem"),
            "files": str(self.files),
            "plain": [[self.at(80), 80], [self.at(81), 80], [self.at(80), 8080], [self.at(81), 8080]],
            "tls": [[self.at(n), 443] for n in (44, 80, 81)] + [[self.at(80), 8443], [self.at(54), 853]],
            "tcp": [[self.at(90), 22, "SSH-2.0-small\r\n"], [self.at(90), 7, ""], [self.at(90), 443, ""]],
            "source": [[self.at(90), 9009]],
            "udp": [[self.at(n), p] for n in (80, 81, 90) for p in (443, 123, 4500)] + [[self.at(54), 853]],
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "support.internet.run"]
        self.process = subprocess.Popen(
            [*command, str(self.folder / "plan.json"), str(self.folder / "journal")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "serving"
        return self

    def stop(self) -> None:
        """End the servers and take the namespace down."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        subprocess.run(["ip", "link", "del", f"{self.name}h"], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)

    def heard(self, server: str = "") -> list[tuple[str, str, str]]:
        """What the servers were asked: server, what, by whom."""
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(found) for line in lines if (found := json.loads(line))[0].startswith(server)]

    def _cable(self) -> None:
        host, inside = f"{self.name}h", f"{self.name}n"
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", host, "type", "veth", "peer", "name", inside, "netns", self.name)
        run("ip", "addr", "add", f"{self.at(1)}/24", "dev", host)
        run("ip", "link", "set", host, "up")
        run("sysctl", "-qw", f"net.ipv4.conf.{host}.forwarding=1")
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        run("ip", "-n", self.name, "link", "set", inside, "up")
        for number in (44, 53, 54, 80, 81, 90):
            run("ip", "-n", self.name, "addr", "add", f"{self.at(number)}/24", "dev", inside)
        run("ip", "-n", self.name, "-6", "addr", "add", "2001:db8::80/64", "dev", inside, "nodad")
        run("ip", "-n", self.name, "route", "add", "default", "via", self.at(1))

    def _certificates(self) -> None:
        key, request, extensions = (self.folder / n for n in ("server.key", "server.csr", "server.ext"))
        names = [n for n in self.names() if not n.startswith("*")] + ["*.wild.test"]
        listed = ",".join(f"DNS:{n}" for n in names) + f",IP:{self.at(80)},IP:{self.at(81)}"
        extensions.write_text(f"subjectAltName={listed}\nbasicConstraints=CA:FALSE\n")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        ca_key = str(self.folder / "ca.key")
        run("openssl", "req", "-x509", *curve, "-keyout", ca_key, "-out", str(self.authority),
            "-days", "2", "-subj", "/CN=small internet",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
        run("openssl", "req", *curve, "-keyout", str(key), "-out", str(request), "-subj", "/CN=server")
        run("openssl", "x509", "-req", "-in", str(request), "-CA", str(self.authority), "-CAkey", ca_key,
            "-CAcreateserial", "-out", str(self.folder / "server.crt"), "-days", "2",
            "-extfile", str(extensions))  # fmt: skip
        chain = (self.folder / "server.crt").read_text() + key.read_text()
        (self.folder / "server.pem").write_text(chain)
