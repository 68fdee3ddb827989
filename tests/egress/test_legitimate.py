# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What ordinary programs do must work unchanged for the names that a policy allows."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.compiled import httpx_library
from support.internet import mirrors, probe
from support.internet.boxes import Boxed, create
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

CA = "/tmp/ca.pem"
GOOD = "http://good.test"
PROBE = "cd /tmp && python3 -c 'import probe; print(probe.{})'"


@dataclass(frozen=True)
class Use:
    """A command, and what it has to print. `needs` is a program of this machine."""

    name: str
    command: str
    prints: str
    needs: str = ""


def _python(code: str) -> str:
    return f"python3 - <<'END'\nimport sys\nsys.path.insert(0, '/tmp/lib.zip')\n{code}\nEND"


def _node(code: str) -> str:
    return f'NODE_EXTRA_CA_CERTS={CA} node -e "{code}"'


def _probe(call: str) -> str:
    """A call of the probe; variables of the shell stand outside its quotes."""
    for name in ("$GW", "$OTHER"):
        call = call.replace(name, f"'{name}'")
    return PROBE.format(call)


JAVA = """
import java.net.URI; import java.net.http.*;
public class Get { public static void main(String[] a) throws Exception {
  var answer = HttpClient.newHttpClient().send(
    HttpRequest.newBuilder(URI.create("http://good.test/java")).build(),
    HttpResponse.BodyHandlers.ofString());
  System.out.println(answer.statusCode() + answer.body()); } }
"""

GO = """
package main
import ("crypto/tls"; "crypto/x509"; "fmt"; "io"; "net/http"; "os")
func main() {
  pem, _ := os.ReadFile("/tmp/ca.pem")
  pool := x509.NewCertPool()
  pool.AppendCertsFromPEM(pem)
  client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
  for _, url := range []string{"http://good.test/go", "https://good.test/go"} {
    answer, err := client.Get(url)
    if err != nil { fmt.Println(err); os.Exit(1) }
    body, _ := io.ReadAll(answer.Body)
    fmt.Println(answer.StatusCode, string(body))
  }
}
"""

SOCKETS = """
import socket
s = socket.create_connection(('good.test', 80), 5)
s.sendall(b'GET /ws HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: Upgrade\\r\\n')
s.sendall(b'Upgrade: websocket\\r\\n\\r\\n')
print(s.recv(4096).split(b'\\r\\n')[0])
s.sendall(b'frame after the switch')
print(s.recv(4096))
"""

KEEP_ALIVE = """
import http.client
c = http.client.HTTPConnection('good.test', timeout=5)
for n in range(5):
    c.request('POST', f'/{n}', b'x' * 100000)
    print(c.getresponse().read()[:60])
"""

PARALLEL = """
import concurrent.futures, urllib.request
def get(n): return len(urllib.request.urlopen(f'http://good.test/bytes/{1000 + n}').read())
with concurrent.futures.ThreadPoolExecutor(25) as pool: print(sum(pool.map(get, range(50))))
"""

SSL = f"import ssl; c = ssl.create_default_context(cafile='{CA}')\n"

USES = [
    Use("curl-http", "curl -sSf http://good.test/a", '"path": "/a"'),
    Use("curl-https", f"curl -sSf --cacert {CA} https://good.test/a", '"host": "good.test"'),
    Use("curl-wildcard", f"curl -sSf --cacert {CA} https://a.wild.test/", "a.wild.test"),
    Use("curl-deeper-wildcard", "curl -sSf http://a.b.wild.test/", "a.b.wild.test"),
    Use("curl-odd-port", "curl -sSf http://good.test:8080/b", '"path": "/b"'),
    Use("curl-tls-odd-port", f"curl -sSf --cacert {CA} https://good.test:8443/", "good.test"),
    Use("curl-head", "curl -sSfI http://good.test/", "200 OK"),
    Use("curl-post", f"head -c 1000000 /dev/zero | curl -sSf --data-binary @- {GOOD}/", '"size": 1000000'),
    Use("curl-put-chunked", f"head -c 300000 /dev/zero | curl -sSf -T - {GOOD}/up", '"size": 300000'),
    Use("curl-expect", "head -c 2000000 /dev/zero | curl -sSf -H 'Expect: 100-continue' --data-binary @- "
        "http://good.test/", '"size": 2000000'),
    Use("curl-chunked-answer", "curl -sSf http://good.test/chunks", "chunk 4"),
    Use("curl-two-on-one", "curl -sSf http://good.test/1 http://good.test/2", '"path": "/2"'),
    Use("curl-http2-offered", "curl -sSf --http2 http://good.test/h2", '"path": "/h2"'),
    Use("curl-capitals", "curl -sSf http://GOOD.Test./x", '"path": "/x"'),
    Use("curl-international", "curl -sSf http://xn--bcher-kva.test/", "xn--bcher-kva.test"),
    Use("curl-alias", "curl -sSf http://alias.test/", "alias.test"),
    Use("curl-half-private-answer", "curl -sSf http://half.test/", "half.test"),
    Use("curl-address-rule", "curl -sSf http://$OTHER/", '"path": "/"'),
    Use("curl-method-rule", "curl -sSf http://api.good.test/open/x", "/open/x"),
    Use("curl-large", "curl -sSf http://good.test/bytes/30000000 | wc -c", "30000000"),
    Use("curl-large-tls", f"curl -sSf --cacert {CA} https://good.test/bytes/30000000 | wc -c", "30000000"),
    Use("wget-http", "wget -qO- http://good.test/mirror/hello.txt", "hello from the mirror"),
    Use("wget-https", f"wget -qO- --ca-certificate={CA} https://good.test/mirror/hello.txt", "hello from"),
    Use("git-clone", f"cd /tmp && git clone -q {GOOD}/mirror/tiny.git && cat tiny/file", "tiny", "git"),
    Use("git-clone-tls", f"cd /tmp && git -c http.sslCAInfo={CA} clone -q "
        "https://good.test/mirror/tiny.git t2 && cat t2/file", "tiny", "git"),
    Use("apt", "mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial && "
        "echo 'deb [trusted=yes] http://good.test/mirror/apt ./' > /tmp/apt/list && "
        "apt-get -o Dir::Etc::SourceList=/tmp/apt/list -o Dir::Etc::SourceParts=- "
        "-o Dir::State::Lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt/cache "
        "-o APT::Sandbox::User=root update 2>&1; cat /tmp/apt/lists/*Packages",
        "Package: tiny", "apt-get"),
    Use("pip", "python3 -m pip install -q --no-cache-dir --break-system-packages --target /tmp/pips "
        "--index-url http://good.test/mirror/simple --trusted-host good.test tiny 2>&1; "
        "cat /tmp/pips/tiny.py", "WORD", "pip3"),
    Use("npm", "cd /tmp && mkdir -p n && cd n && npm install --silent --no-audit --cache /tmp/npmc "
        "--registry http://good.test/mirror/npm/ tiny 2>&1; cat node_modules/tiny/index.js", "tiny", "npm"),
    Use("python-urllib", _python(SSL + "import urllib.request as u\n"
        "print(u.urlopen('https://good.test/u', context=c).read())"), "/u"),
    Use("python-keep-alive", _python(KEEP_ALIVE), '/4'),
    Use("python-parallel", _python(PARALLEL), str(sum(1000 + n for n in range(50)))),
    Use("python-requests", _python("from pip._vendor import requests\n"
        f"print(requests.get('https://good.test/r', verify='{CA}').text)"), "/r", "pip3"),
    Use("python-httpx", _python(SSL + "import httpx\n"
        "print(httpx.get('https://good.test/hx', verify=c).text)"), "/hx"),
    Use("python-websocket", _python(SOCKETS), "frame after the switch"),
    Use("node-fetch", _node(f"fetch('{GOOD}/node').then(r=>r.text()).then(console.log)"), "/node", "node"),
    Use("node-https", _node("require('https').get('https://good.test/nh',r=>r.on('data',d=>console.log(String(d))))"),
        "/nh", "node"),
    Use("java-http-client", "java -Xmx256m /tmp/Get.java", "200", "java"),
    Use("go-http", "/tmp/goget", "200", "go"),
    Use("server-speaks-first", PROBE.format('stream("echo.test", 22, [])'), "SSH-2.0-small"),
    Use("client-speaks-first", PROBE.format('stream("echo.test", 7, ["echo me"])'), "echo me"),
    Use("capitals-first", PROBE.format('stream("echo.test", 7, ["EHLO me"])'), "EHLO me"),
    Use("udp-by-name", PROBE.format('datagram("echo.test", 123, "time")'), "time"),
    Use("udp-by-address", _probe('datagram("$OTHER", 4500, "tunnel")'), "tunnel"),
    Use("lookup", "getent hosts good.test", "good.test"),
    Use("b059-lookup-tcp", _probe('ask("$GW", "good.test", over="tcp", pipeline=5)'),
        '"answers": 5'),
    Use("b059-truncated", _probe('ask("$GW", "big.test")'), '"truncated": true'),
    Use("b059-big-over-tcp", _probe('ask("$GW", "big.test", over="tcp")'), '"count": 40'),
    Use("b059-big-with-edns", _probe('ask("$GW", "big.test", size=4096)'), '"count": 40'),
    Use("lookup-text", _probe('ask("$GW", "text.test", kind=16, over="tcp")'), '"count": 1'),
    Use("any-resolver-answers", PROBE.format('ask("8.8.8.8", "good.test")'), '"count": 1'),
    Use("loopback", "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1; "
        "curl -sSf http://127.0.0.1:8123/ | head -1; kill %1", "DOCTYPE"),
]  # fmt: skip


def policy(world: World) -> dict[str, object]:
    """Allows what the uses need, and no more."""
    names = ["good.test", "*.wild.test", "echo.test", "half.test", "alias.test", "big.test", "text.test"]
    rules: list[dict[str, object]] = [{"action": "allow", "target": name} for name in [*names, "bücher.test"]]
    rules.append({"action": "allow", "target": world.at(81), "ports": [80, 4500]})
    rules.append({"action": "allow", "target": "api.good.test", "methods": ["GET"], "paths": ["/open/*"]})
    return {"defaultAction": "deny", "egress": rules}


def _go(folder: Path) -> bytes | None:
    if shutil.which("go") is None:
        return None
    (folder / "get.go").write_text(GO)
    subprocess.run(["go", "build", "-o", "goget", "get.go"], cwd=folder, check=True, timeout=120)
    return (folder / "goget").read_bytes()


@pytest.fixture(scope="module")
def box(ground: tuple[Server, str], world: World, tmp_path_factory: pytest.TempPathFactory) -> Boxed:
    """A sandbox with what the uses need in it."""
    if not (world.files / "hello.txt").exists():
        mirrors.make(world.files)
    server, isolation = ground
    boxed = create(server, policy(world), isolation)
    asyncio.run(_fill(boxed, world, _go(tmp_path_factory.mktemp("go"))))
    return boxed


async def _fill(boxed: Boxed, world: World, goget: bytes | None) -> None:
    async with AsyncClient(Connection(boxed.server.url, boxed.server.api_key)) as client:
        inside = await AsyncSandbox.connect(boxed.id, client=client)
        await inside.files.write(CA, world.authority.read_text())
        await inside.files.write("/tmp/probe.py", Path(probe.__file__).read_text())
        await inside.files.write("/tmp/Get.java", JAVA)
        await inside.files.write("/tmp/lib.zip", httpx_library())
        if goget is not None:
            await inside.files.write("/tmp/goget", goget)
            await inside.commands.run("chmod 755 /tmp/goget")


@pytest.mark.parametrize("use", USES, ids=lambda use: use.name)
async def test_works(box: Boxed, world: World, use: Use) -> None:
    if use.needs and shutil.which(use.needs) is None:
        cannot_run(f"{use.needs} is not installed")
    async with AsyncClient(Connection(box.server.url, box.server.api_key)) as client:
        inside = await AsyncSandbox.connect(box.id, client=client)
        env = {"OTHER": world.at(81), "GW": box.gateway, "HOME": "/tmp"}
        done = await inside.commands.run(use.command, env=env, timeout=60)
    said = done.stdout + done.stderr
    assert use.prints in said, f"{said}\n" + "\n".join(line for line in box.log().splitlines()[-15:])


def test_there_are_enough_of_them() -> None:
    assert len(USES) >= 30
