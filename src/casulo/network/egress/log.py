# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Reading the audit log of the egress process as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from casulo.model.errors import Code, Unavailable

_CONNECT_SECONDS = 5.0
_LONGEST_LINE = 1 << 20


async def log_lines(socket: Path, sandbox_id: str, *, follow: bool) -> AsyncIterator[bytes]:
    """The last lines about a sandbox and, with `follow`, those to come, until the process ends."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(socket, limit=_LONGEST_LINE)
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            "the egress process does not answer, so there is no log to read",
            code=Code.NETWORK_POLICY_FAILED,
            hint="it is started again by itself; the file of the log has what was written before",
        ) from error
    try:
        target = f"/log?sandbox={quote(sandbox_id, safe='')}{'&follow=true' if follow else ''}"
        # In this version of HTTP the body comes as it is and ends with the connection.
        writer.write(f"GET {target} HTTP/1.0\r\nHost: egress\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        while line := await reader.readline():
            yield line
    except (OSError, asyncio.IncompleteReadError):
        return  # the process ended; whoever wants more asks again
    finally:
        writer.close()
