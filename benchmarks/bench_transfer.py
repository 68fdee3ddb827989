# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""One GiB up and down, straight to the daemon, checked by its SHA-256 on both sides."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator

from benchmarks.harness import conditions, serving
from benchmarks.report import Report
from casulo.client.sandbox import AsyncSandbox
from support.traces import daemon_peak_kib

BLOCK = os.urandom(1 << 20)
BLOCKS = 1024
PATH = "/workspace/large"


async def _blocks() -> AsyncIterator[bytes]:
    for _ in range(BLOCKS):
        yield BLOCK


async def measure() -> Report:
    limits = {"cpu": "2", "memory": "2Gi"}
    async with (
        serving() as (server, client),
        await AsyncSandbox.create("host", resources=limits, client=client) as sandbox,
    ):
        begun = time.perf_counter()
        await sandbox.files.write(PATH, _blocks())
        uploaded = time.perf_counter() - begun
        inside = (await sandbox.commands.run(["sha256sum", PATH])).check().stdout.split()[0]
        begun, received = time.perf_counter(), 0
        async for chunk in sandbox.files.stream(PATH):
            received += len(chunk)
        downloaded = time.perf_counter() - begun
        peak = daemon_peak_kib(server.data_dir, sandbox.id)
    megabytes = BLOCKS * len(BLOCK) / 1e6
    figures = {
        "megabytes": round(megabytes, 1),
        "upload_megabytes_per_second": round(megabytes / uploaded, 1),
        "download_megabytes_per_second": round(megabytes / downloaded, 1),
        "complete": received == BLOCKS * len(BLOCK) and inside == _expected(),
        "daemon_peak_mib": round(peak / 1024, 1),
    }
    return Report("transfer", figures, {**conditions(), "channel": "direct"})


def _expected() -> str:
    digest = hashlib.sha256()
    for _ in range(BLOCKS):
        digest.update(BLOCK)
    return digest.hexdigest()
