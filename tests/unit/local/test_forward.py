# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The loopback port in front of a unix socket passes bytes, ends and failures on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from casulo.network.forward import Forward

PAYLOAD = os.urandom(3 << 20)


async def _echo_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(-1))
    writer.write_eof()
    await writer.drain()
    writer.close()


async def test_bytes_and_half_close_pass_both_ways(tmp_path: Path) -> None:
    inner = await asyncio.start_unix_server(_echo_all, tmp_path / "s")
    forward = await Forward.open(tmp_path / "s", None)
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
    writer.write(PAYLOAD)
    writer.write_eof()
    assert await reader.read(-1) == PAYLOAD
    writer.close()
    await forward.close()
    inner.close()


async def test_nobody_behind_it_ends_the_connection_without_a_byte(tmp_path: Path) -> None:
    forward = await Forward.open(tmp_path / "absent", None)
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
    try:
        received = await reader.read(1)
    except ConnectionResetError:
        received = b""
    assert received == b""
    writer.close()
    await forward.close()


async def test_a_wanted_port_is_kept_and_a_taken_one_replaced(tmp_path: Path) -> None:
    first = await Forward.open(tmp_path / "s", None)
    second = await Forward.open(tmp_path / "s", first.port)
    assert second.port != first.port
    port = first.port
    await first.close()
    third = await Forward.open(tmp_path / "s", port)
    assert third.port == port
    await second.close()
    await third.close()
