# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Credential vaults from the call to the wire: every client trusts what is intercepted and what is not,
nothing of a value is inside or lies about, and injection goes on after whatever happens."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError
from casulo.network.egress.calls import call
from support.compiled import go_program, httpx_library
from support.internet.boxes import Boxed, create, make_server, process_of
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

BOUND, OTHER = "https://good.test/headers", "https://evil.test/headers"
POLICY = {"egress": [{"action": "allow", "target": name} for name in ("good.test", "evil.test")]}
RECOVERY_SECONDS = 30.0

JAVA = """
import java.net.URI; import java.net.http.*;
public class Get { public static void main(String[] a) throws Exception {
  for (String url : a) System.out.println(HttpClient.newHttpClient().send(
    HttpRequest.newBuilder(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString()).body()); } }
"""
GO = """
package main
import ("fmt"; "io"; "net/http"; "os")
func main() { for _, url := range os.Args[1:] {
  answer, err := http.Get(url)
  if err != nil { fmt.Println(err); os.Exit(1) }
  body, _ := io.ReadAll(answer.Body)
  fmt.Println(string(body)) } }
"""
URLS = f"{BOUND} {OTHER}"


@dataclass(frozen=True)
class Program:
    """A client; it prints what both hosts were sent. `needs` is a program of this machine."""

    name: str
    command: str
    needs: str = ""


PROGRAMS = [
    Program("curl", f"curl -sSf {URLS}"),
    Program("curl-bare", f"env -i /usr/bin/curl -sSf {URLS}"),
    Program("wget", f"wget -qO- {URLS}"),
    Program("wget-bare", f"env -i /usr/bin/wget -qO- {URLS}"),
    Program("python-urllib", "python3 -c 'import sys, urllib.request as u\n"
        f"for url in sys.argv[1:]: print(u.urlopen(url).read().decode())' {URLS}"),
    Program("python-bare", "env -i python3 -c 'import sys, urllib.request as u\n"
        f"for url in sys.argv[1:]: print(u.urlopen(url).read().decode())' {URLS}"),
    Program("python-requests", "python3 -c 'import sys; from pip._vendor import requests as r\n"
        f"for url in sys.argv[1:]: print(r.get(url).text)' {URLS}", "pip3"),
    Program("python-httpx", "PYTHONPATH=/tmp/lib.zip python3 -c 'import sys, httpx\n"
        f"for url in sys.argv[1:]: print(httpx.get(url).text)' {URLS}"),
    Program("node", "node -e 'for (const u of process.argv.slice(1)) "
        f"fetch(u).then(r => r.text()).then(console.log)' {URLS}", "node"),
    Program("java", f"java -Xmx256m /tmp/Get.java {URLS}", "java"),
    Program("go", f"/tmp/goget {URLS}", "go"),
]  # fmt: skip


def value() -> str:
    """One that is nowhere else."""
    return f"sk-{secrets.token_hex(24)}"


def boxed(ground: tuple[Server, str], **more: Any) -> Boxed:
    server, isolation = ground
    return create(server, POLICY, isolation, **{"credentialProxy": {"enabled": True}, **more})


async def entered(box: Boxed, client: AsyncClient) -> AsyncSandbox:
    return await AsyncSandbox.connect(box.id, client=client)


@pytest.fixture
async def visitor(ground: tuple[Server, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(Connection(ground[0].url, ground[0].api_key)) as made:
        yield made


async def trust_the_world(inside: AsyncSandbox, world: World) -> None:
    """As if the small internet's authority were a public one, which images have in these files."""
    await inside.files.write("/tmp/world.pem", world.authority.read_text())
    done = await inside.commands.run(
        "for file in /etc/ssl/certs/ca-certificates.crt /etc/casulo/ca-bundle.pem /etc/casulo/ca.pem; do "
        "cat /tmp/world.pem >> $file; done; "
        "cp /tmp/world.pem /etc/ssl/certs/$(openssl x509 -noout -subject_hash -in /tmp/world.pem).0; "
        "if command -v keytool; then keytool -importcert -noprompt -alias world -file /tmp/world.pem "
        "-keystore /etc/ssl/certs/java/cacerts -storepass changeit; fi 2>&1",
        timeout=120,
    )
    assert done.ok, done.stdout + done.stderr


async def bind(inside: AsyncSandbox, secret: str, **more: Any) -> None:
    await inside.vault.set("key", secret)
    await inside.vault.bind("good", "good.test", credential="key", redact_bodies=True, **more)


async def sent(inside: AsyncSandbox, url: str = BOUND) -> str:
    done = await inside.commands.run(f"curl -sSf -m 20 {url} 2>&1", timeout=60)
    return done.stdout


async def injected(inside: AsyncSandbox) -> bool:
    return "Bearer [REDACTED]" in await sent(inside)


async def recovers(inside: AsyncSandbox) -> None:
    deadline = time.monotonic() + RECOVERY_SECONDS
    while not await injected(inside):
        assert time.monotonic() < deadline, "nothing is injected any more"
        await asyncio.sleep(0.3)


async def test_every_client_trusts_both(
    ground: tuple[Server, str], world: World, visitor: AsyncClient, prepared: dict[str, bytes]
) -> None:
    box, missing = boxed(ground), []
    inside = await entered(box, visitor)
    await bind(inside, value())
    await trust_the_world(inside, world)
    for name, content in prepared.items():
        await inside.files.write(name, content)
    await inside.commands.run("chmod 755 /tmp/goget")
    for program in PROGRAMS:
        if program.needs and shutil.which(program.needs) is None:
            missing.append(program.needs)
            continue
        done = await inside.commands.run(program.command, env={"HOME": "/tmp"}, timeout=120)
        said = done.stdout + done.stderr
        assert said.count('"headers"') == 2, f"{program.name}: {said}"
        assert said.count("Bearer [REDACTED]") == 1, f"{program.name}: {said}"
    await inside.commands.run("git ls-remote https://good.test/headers/x.git", timeout=60)
    assert any("/headers/x.git/info/refs" in line[1] for line in world.heard()), "git did not get through"
    box.delete()
    if missing:
        cannot_run(f"not installed: {', '.join(missing)}; the others passed")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files that the clients need inside."""
    folder = tmp_path_factory.mktemp("clients")
    made = {"/tmp/Get.java": JAVA.encode(), "/tmp/lib.zip": httpx_library()}
    if (program := go_program(folder, GO)) is not None:
        made["/tmp/goget"] = program
    return made


async def test_nothing_of_a_value_is_inside_or_lies_about(
    ground: tuple[Server, str], world: World, visitor: AsyncClient
) -> None:
    server, box, secret = ground[0], boxed(ground), value()
    inside = await entered(box, visitor)
    await bind(inside, secret)
    use = "for n in $(seq 15); do curl -sS -m 20 https://good.test/headers/$n; done >> /tmp/answers"
    await asyncio.gather(*(inside.commands.run(use, timeout=120) for _ in range(3)))
    await inside.commands.run(
        "curl -sS https://good.test/headers -H 'Authorization: mine' -d x >> /tmp/answers"
    )
    with pytest.raises(CasuloError) as refused:
        await inside.vault.bind("again", "good.test", credential="key")
    assert secret not in str(refused.value)
    assert await inside.vault.get() and secret not in str(await inside.vault.get())
    await inside.vault.set("key", secret)
    await _scan_inside(inside, secret)
    _scan_outside(server, box, secret)
    box.delete()
    _scan_outside(server, box, secret)


async def _scan_inside(inside: AsyncSandbox, secret: str) -> None:
    """Files, memory and environment of everything that can be seen in there."""
    await inside.files.write("/tmp/scan.py", SCAN)
    halves = " ".join(secret[:20]), " ".join(secret[20:])  # so that the search does not find itself
    done = await inside.commands.run(["python3", "/tmp/scan.py", *halves], timeout=170)
    assert done.ok and "looked at" in done.stdout, done.stdout + done.stderr
    assert "FOUND" not in done.stdout, done.stdout


SCAN = r"""
import base64, glob, os, sys
word = ''.join((sys.argv[1] + ' ' + sys.argv[2]).split()).encode()
forms = [word, base64.b64encode(word), base64.b64encode(b'Bearer ' + word)[8:-4], word.hex().encode()]
looked = 0
def look(path, limit=64 << 20):
    global looked
    try:
        with open(path, 'rb') as f: data = f.read(limit)
    except OSError:
        return
    looked += 1
    if any(form in data for form in forms): print('FOUND', path)
for top in ('/etc', '/tmp', '/var', '/root', '/home', '/run', '/opt', '/workspace', '/dev/shm'):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path): look(path)
for folder in glob.glob('/proc/[0-9]*'):
    for name in ('environ', 'cmdline', 'maps', 'mountinfo', 'status'): look(folder + '/' + name)
    if folder == '/proc/%d' % os.getpid(): continue
    try:
        spans = [line.split()[0].split('-') for line in open(folder + '/maps') if ' r' in line]
        memory = open(folder + '/mem', 'rb', 0)
    except OSError:
        continue
    for low, high in spans:
        try:
            memory.seek(int(low, 16)); data = memory.read(min(int(high, 16) - int(low, 16), 64 << 20))
        except (OSError, ValueError, OverflowError):
            continue
        if any(form in data for form in forms): print('FOUND', folder, low)
print('looked at', looked)
"""


def _scan_outside(server: Server, box: Boxed, secret: str) -> None:
    """Everything that the server keeps or says, the metrics included."""
    forms = [secret.encode(), base64.b64encode(secret.encode()), secret.encode().hex().encode()]
    found = [
        path
        for path in server.data_dir.rglob("*")
        if path.is_file() and not path.is_symlink() and any(form in path.read_bytes() for form in forms)
    ]
    assert not found
    told = [
        server.output,
        server.request("GET", "/metrics").text,
        server.request("GET", f"/v1/sandboxes/{box.id}").text,
    ]
    process = process_of(server)
    told += [
        str(process),
        Path(f"/proc/{_pid(server)}/cmdline").read_text(),
        Path(f"/proc/{_pid(server)}/environ").read_text(),
    ]
    assert not [text for text in told if secret in text]


def _pid(server: Server) -> int:
    return int(call(Path(process_of(server)["socket"]), "GET", "/health")["pid"])


async def test_injection_goes_on_after_everything(ground: tuple[Server, str], visitor: AsyncClient) -> None:
    server, box = ground[0], boxed(ground)
    inside = await entered(box, visitor)
    await bind(inside, value())
    assert await injected(inside)
    server.request("POST", f"/v1/sandboxes/{box.id}/pause")
    assert (await inside.vault.get())["revision"] == 2
    server.request("POST", f"/v1/sandboxes/{box.id}/resume")
    assert await injected(inside)
    os.kill(_pid(server), signal.SIGKILL)
    await recovers(inside)
    taken = server.request("POST", f"/v1/sandboxes/{box.id}/snapshots", json={}).json()["id"]
    while server.request("GET", f"/v1/snapshots/{taken}").json()["status"]["state"] == "Creating":
        await asyncio.sleep(0.05)
    box.delete()
    restored = create(server, None, ground[1], image=None, snapshotId=taken, extensions={})
    again = await entered(restored, visitor)
    assert await injected(again)
    assert (await again.vault.unbind("good"))["revision"] == 3
    assert "Bearer" not in await sent(again)
    restored.delete()


async def test_a_file_is_followed(egress_server: Server, world: World, client: AsyncClient) -> None:
    inside = await entered(boxed((egress_server, "container")), client)
    path, first, second = world.secrets / secrets.token_hex(8), "first-" + value(), "second-" + value()
    path.write_text(first + "\n")
    await inside.vault.set("key", file=str(path))
    await inside.vault.bind("good", "good.test", credential="key")
    assert f"Bearer {first}" in await sent(inside)
    draft = path.with_suffix(".new")
    draft.write_text(second)
    draft.replace(path)
    deadline = time.monotonic() + RECOVERY_SECONDS
    while f"Bearer {second}" not in await sent(inside):
        assert time.monotonic() < deadline, "the new value is not used"
    await inside.kill()


async def test_the_official_behaviour(egress_server: Server, world: World, client: AsyncClient) -> None:
    """Section 5.6 of the protocol: each type of auth on a path of its own, over HTTP to a pinned address."""
    host = "credential-vault-e2e.opensandbox.test"
    policy = {"defaultAction": "allow", "egress": [{"action": "allow", "target": host}]}
    box = create(egress_server, policy, credentialProxy={"enabled": True})
    inside = await entered(box, client)
    assert (await inside.vault.create())["revision"] == 1
    names = {"token": value(), "pair": base64.b64encode(value().encode()).decode(), "key": value()}
    auths: dict[str, dict[str, Any]] = {
        "bearer": {"type": "bearer", "credential": "token"},
        "basic": {"type": "basic", "credential": "pair"},
        "key": {"type": "apiKey", "name": "X-Api-Key", "credential": "key"},
        "custom": {
            "type": "customHeaders",
            "headers": [
                {"name": "X-Client-Id", "credential": "key"},
                {"name": "X-Client-Secret", "credential": "token"},
            ],
        },
    }
    match = {"hosts": [host], "schemes": ["http"], "ports": [80], "methods": ["GET"]}
    added = [
        {"name": name, "match": {**match, "paths": [f"/headers/{name}"]}, "auth": auth}
        for name, auth in auths.items()
    ]
    credentials = [{"name": name, "source": {"value": each}} for name, each in names.items()]
    await inside.vault.patch(credentials={"add": credentials}, bindings={"add": added})
    pinned = f"--resolve {host}:80:{world.at(80)} http://{host}/headers"
    told = {path: await sent(inside, f"{pinned}/{path}") for path in (*auths, "other")}
    assert f"Bearer {names['token']}" in told["bearer"] and f"Basic {names['pair']}" in told["basic"]
    assert f'"X-Api-Key": "{names["key"]}"' in told["key"]
    assert f'"X-Client-Id": "{names["key"]}", "X-Client-Secret": "{names["token"]}"' in told["custom"]
    assert '"headers"' in told["other"] and not any(each in told["other"] for each in names.values())
    box.delete()


async def test_server_and_process_killed_together(world: World, tmp_path: Path) -> None:
    """The new process is told policy and vault at once: no request goes out bare in between."""
    server = make_server(tmp_path / "server", world).start()
    try:
        box = boxed((server, "container"))
        async with AsyncClient(Connection(server.url, server.api_key)) as client:
            inside = await entered(box, client)
            await bind(inside, value())
            assert await injected(inside)
            loop = (
                "while :; do curl -s -m 5 https://good.test/headers; echo; sleep 0.05; done > /tmp/loop 2>&1"
            )
            await inside.commands.start(loop)
            await asyncio.sleep(1.5)
        pid = _pid(server)
        server.crash()
        os.kill(pid, signal.SIGKILL)
        server.start()
        async with AsyncClient(Connection(server.url, server.api_key)) as client:
            inside = await entered(box, client)
            await recovers(inside)
            await asyncio.sleep(6)  # so that the loop, too, has an answer of the new process
            text = (await inside.files.read("/tmp/loop")).splitlines()
        answers = [line for line in text if '"headers"' in line]
        assert answers and all("Bearer [REDACTED]" in line for line in answers), text[:20]
        (server.data_dir / "vault-key").rename(tmp_path / "key")
        server.crash()
        server.start()
        answer = server.request("GET", f"/v1/sandboxes/{box.id}")
        assert answer.json()["status"]["state"] == "Running" and "vault.unusable" in server.output
    finally:
        server.delete_all()
        server.stop()
