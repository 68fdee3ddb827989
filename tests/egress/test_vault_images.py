# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Trust in images of other makes: without a shell or any roots, and with Alpine's places for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from casulo.client.connection import Connection
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.compiled import go_program
from support.images import ImageParts, LayoutWriter, archive, folder, link, member
from support.internet.boxes import make_server
from support.internet.world import World
from support.machine import cannot_run
from support.server import Server

PROGRAM = """
package main
import ("fmt"; "io"; "net/http"; "os"; "time")
func main() {
  if len(os.Args) == 1 { time.Sleep(time.Hour) }
  answer, err := http.Get(os.Args[1])
  if err != nil { fmt.Println(err); os.Exit(1) }
  body, _ := io.ReadAll(answer.Body)
  fmt.Println(string(body))
}
"""
ROOT = "# a public root\n"


async def test_images_of_other_makes(world: World, tmp_path: Path) -> None:
    program = go_program(tmp_path, PROGRAM)
    if program is None:
        cannot_run("go is not installed")
    layout = LayoutWriter(tmp_path / "oci")
    app = member("app", program, mode=0o755)
    alpine = [
        folder("etc"),
        folder("etc/ssl"),
        folder("etc/ssl/certs"),
        member("etc/ssl/certs/ca-certificates.crt", ROOT.encode()),
    ]
    alpine.append(link("etc/ssl/cert.pem", "certs/ca-certificates.crt"))
    layout.add("scratch", ImageParts([archive(app)], {"Entrypoint": ["/app"]}))
    layout.add("alpine", ImageParts([archive(*alpine, app)], {"Entrypoint": ["/app"]}))
    server = make_server(tmp_path / "server", world, f'[images]\nsources = ["{layout.folder}"]\n').start()
    try:
        for tag in ("scratch", "alpine"):
            for isolation in ("container", "gvisor"):
                await asyncio.wait_for(_check(server, layout.reference(tag), isolation), 120)
    finally:
        server.delete_all()
        server.stop()


async def _check(server: Server, image: str, isolation: str) -> None:
    async with AsyncClient(Connection(server.url, server.api_key)) as client:
        made = AsyncSandbox.create(
            image,
            isolation=isolation,
            network_policy={"egress": [{"action": "allow", "target": "good.test"}]},
            credential_proxy=True,
            client=client,
        )
        async with await made as inside:
            await inside.vault.set("key", "s3cr3t-of-images")
            await inside.vault.bind("good", "good.test", credential="key", redact_bodies=True)
            for env in ({}, {"SSL_CERT_FILE": ""}):  # by the variable, and by the image's own file
                said = await inside.commands.run(["/app", "https://good.test/headers"], env=env, timeout=60)
                assert "Bearer [REDACTED]" in said.stdout, (image, isolation, env, said)
            if image.endswith("alpine"):
                text = await inside.files.read("/etc/ssl/cert.pem")
                assert text.startswith(ROOT) and "BEGIN CERTIFICATE" in text
