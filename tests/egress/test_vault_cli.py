# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb vault` against a real server: values by standard input and by variable, never as an argument."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from casulo.cli.main import app
from support.server import Server

VALUE, OTHER = "s3cr3t-one", "s3cr3t-two"


class Osb:
    """The command line, within this process."""

    def __init__(self, server: Server) -> None:
        self.words = ["--domain", server.domain, "--api-key", server.api_key]

    def __call__(self, *words: str, stdin: str = "", fails: bool = False, **env: str) -> str:
        done = CliRunner().invoke(app, [*self.words, *words], input=stdin, env=env, prog_name="osb")
        said = done.stdout + done.stderr
        assert (done.exit_code != 0) == fails, said
        assert VALUE not in said and OTHER not in said
        return said if fails else done.stdout

    def state(self, *words: str, **more: Any) -> dict[str, Any]:
        return dict(json.loads(self(*words, **more)))


def test_the_whole_of_it(egress_server: Server, tmp_path: Path) -> None:
    osb = Osb(egress_server)
    policy = tmp_path / "policy.json"
    policy.write_text('{"egress": [{"action": "allow", "target": "*.good.test"}]}')
    box = osb("sandbox", "create", "--network-policy-file", str(policy), "--credential-proxy").strip()
    assert osb.state("vault", "set", box, "key", stdin=f"{VALUE}\n")["revision"] == 1
    assert osb.state("vault", "set", box, "key", "--from-env", "MY_KEY", MY_KEY=OTHER)["revision"] == 2
    bound = osb.state(
        "vault", "bind", box, "api", "--host", "api.good.test", "--credential", "key", "--auth", "apiKey",
        "--header", "X-Api-Key", "-X", "GET", "--path", "/v1/*", "--redact-bodies",
    )  # fmt: skip
    assert bound["bindings"][0]["auth"] == {"type": "apiKey", "name": "X-Api-Key"}
    assert bound["bindings"][0]["match"]["paths"] == ["/v1/*"] and bound["bindings"][0]["redactBodies"]
    assert osb.state("vault", "get", box) == bound
    osb("command", "run", box, "curl -sS -m 20 'https://api.good.test/v1/x?q=1' > /dev/null")
    assert "GET /v1/x  binding api  (allow *.good.test: answered 200)" in osb("egress", "log", box)
    assert "uses the credential" in osb("vault", "rm", box, "key", fails=True)
    assert "not allow" in osb(
        "vault", "bind", box, "x", "--host", "other.test", "--credential", "key", fails=True
    )
    patch = {
        "bindings": {"delete": ["api"]},
        "credentials": {"replace": [{"name": "key", "source": {"value": VALUE}}]},
    }
    assert "revision 3" in osb(
        "vault", "patch", box, "-", "--expected-revision", "1", stdin=json.dumps(patch), fails=True
    )
    assert osb.state("vault", "patch", box, "-", stdin=json.dumps(patch))["bindings"] == []
    assert osb.state("vault", "rm", box, "key")["credentials"] == []
    osb("vault", "delete", box)
    osb("vault", "get", box, fails=True)
    assert osb.state("credential-vault", "create", box)["revision"] == 1
    assert "is empty" in osb("vault", "set", box, "key", fails=True)
    assert "no JSON" in osb("vault", "patch", box, "-", stdin=f'{{"x": "{VALUE}', fails=True)
    assert "not allowed" in osb("vault", "set", box, "key", "--server-env", "HOME", fails=True)
    osb("sandbox", "kill", box)
