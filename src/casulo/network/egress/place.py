# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Where the egress process of one server keeps its things, and the configuration that it is started with."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from casulo.model.errors import Code, Unsupported
from casulo.model.quantities import whole_bytes
from casulo.network.egress.settings import EgressSettings

_ADDRESSES = 262144
_NICE = -10
"""All sandboxes wait for this one process, so it goes before what one of them does."""

_GROUPS = range(1024, 65024)


@dataclass(frozen=True)
class Place:
    """Files and kernel names, all derived from the server's instance.

    `run` does not survive a reboot, as the rules in the kernel do not; `data` does.
    """

    instance: str
    run: Path
    data: Path
    binary: Path

    @property
    def socket(self) -> Path:
        """Where the process is told what holds."""
        return self.run / "control"

    @property
    def config(self) -> Path:
        """What the process is started with."""
        return self.run / "config.json"

    @property
    def output(self) -> Path:
        """What the process prints."""
        return self.data / "egress.log"

    @property
    def table(self) -> str:
        """The table of the packet filter that the process writes."""
        return f"casulo_{self.instance}_egress"

    def configuration(self, settings: EgressSettings) -> dict[str, Any]:
        """The file's content; `digest` names it, so that a process with another one is noticed."""
        told: dict[str, Any] = {
            "socket": str(self.socket),
            "lock": str(self.run / "lock"),
            "ports": str(self.run / "ports.json"),
            "table": self.table,
            "group": _GROUPS[zlib.crc32(self.instance.encode()) % len(_GROUPS)],
            "resolvers": list(settings.resolvers or host_servers()),
            "public": [str(network) for network in settings.public],
            "blockDoH": settings.block_doh,
            "doh": list(settings.doh),
            "addresses": _ADDRESSES,
            "nice": _NICE,
            "server": str(self.data.parent / "server.json"),
            "limits": {
                "connections": settings.max_connections,
                "connectionsPerSecond": settings.connections_per_second,
                "queriesPerSecond": settings.queries_per_second,
                "addresses": settings.max_addresses,
            },
            "audit": {
                "path": str(settings.log or self.data / "audit.jsonl"),
                "maxBytes": whole_bytes("log_max", settings.log_max),
                "keep": settings.log_keep,
            },
        }
        text = json.dumps([told, self._build()], sort_keys=True)
        return {**told, "digest": hashlib.sha256(text.encode()).hexdigest()}

    def _build(self) -> list[int]:
        """Changes when the program was replaced, also by one of the same version."""
        try:
            status = self.binary.stat()
        except FileNotFoundError:
            raise Unsupported(
                "the egress program is missing from this installation",
                code=Code.HOST_UNSUPPORTED,
                hint="in a checkout run `./dev setup`; otherwise reinstall the package",
            ) from None
        return [status.st_size, status.st_mtime_ns]


def host_servers() -> tuple[str, ...]:
    """The name servers that this host uses; unlike sandboxes, the process can use local ones too."""
    try:
        lines = Path("/etc/resolv.conf").read_text().splitlines()
    except OSError:
        return ()
    words = [line.split() for line in lines if line.startswith("nameserver")]
    return tuple(w[1] for w in words if len(w) > 1 and _is_address(w[1]))


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return "%" not in text
