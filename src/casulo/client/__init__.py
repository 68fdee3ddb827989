# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The Python SDK: make sandboxes, run commands in them, move files.

    from casulo.client import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.commands.run("echo hello").stdout)

`AsyncSandbox` is the same with `await`.
"""

from casulo.client.code import CellEnded, CellStarted, CodeContext, FilesChanged
from casulo.client.code_results import ChangedFile, CodeError, CodeFailed, CodeResult, Value
from casulo.client.connection import Connection
from casulo.client.faults import Disconnected, StreamBroken, Unreachable
from casulo.client.files import AsyncFiles, Write
from casulo.client.isolated import BindMount, IsolatedSessionInfo, Overlay
from casulo.client.lifecycle import AsyncClient
from casulo.client.records import Endpoint, FileChange, FileInfo, Metrics, Process, SandboxInfo, SandboxPage
from casulo.client.results import CommandFailed, CommandStatus, Logs, Result
from casulo.client.sandbox import AsyncSandbox
from casulo.client.snapshots import Snapshot, SnapshotPage
from casulo.client.stream import Ending, Exit, Output, Started
from casulo.client.sync import Client, Sandbox
from casulo.client.templates import Template
from casulo.client.volumes import Volume
from casulo.model.errors import (
    CasuloError,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    RuntimeFailure,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncSandbox",
    "BindMount",
    "CasuloError",
    "CellEnded",
    "CellStarted",
    "ChangedFile",
    "Client",
    "CodeContext",
    "CodeError",
    "CodeFailed",
    "CodeResult",
    "CommandFailed",
    "CommandStatus",
    "Conflict",
    "Connection",
    "Disconnected",
    "Ending",
    "Endpoint",
    "Exit",
    "FileChange",
    "FileInfo",
    "FilesChanged",
    "Forbidden",
    "InvalidRequest",
    "IsolatedSessionInfo",
    "Logs",
    "Metrics",
    "NotFound",
    "Output",
    "Overlay",
    "Process",
    "Result",
    "RuntimeFailure",
    "Sandbox",
    "SandboxInfo",
    "SandboxPage",
    "Snapshot",
    "SnapshotPage",
    "Started",
    "StreamBroken",
    "Template",
    "TimedOut",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "Value",
    "Volume",
    "Write",
]
