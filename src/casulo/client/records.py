# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What the client hands out: immutable records, and how each is read from the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from casulo.client.faults import BAD_ANSWER
from casulo.model.errors import RuntimeFailure

T = TypeVar("T")


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as the server describes it. `expires_at` is None when it stays until it is killed.

    One that was restored has a `snapshot_id` and no `image`.
    """

    id: str
    state: str
    reason: str
    message: str
    created_at: datetime
    expires_at: datetime | None = None
    image: str | None = None
    entrypoint: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: str | None = None
    lineage: tuple[str, ...] = ()

    @staticmethod
    def read(data: Any) -> SandboxInfo:
        """From the wire's Sandbox object."""
        status = data["status"]
        image = data.get("image")
        return SandboxInfo(
            id=str(data["id"]),
            state=str(status.get("state", "Unknown")),
            reason=str(status.get("reason") or ""),
            message=str(status.get("message") or ""),
            created_at=moment(data["createdAt"]),
            expires_at=moment(data["expiresAt"]) if data.get("expiresAt") else None,
            image=str(image["uri"]) if isinstance(image, dict) and "uri" in image else None,
            entrypoint=tuple(data.get("entrypoint") or ()),
            metadata=dict(data.get("metadata") or {}),
            extensions=dict(data.get("extensions") or {}),
            snapshot_id=str(data["snapshotId"]) if data.get("snapshotId") else None,
            lineage=tuple(data.get("lineage") or ()),
        )


@dataclass(frozen=True)
class SandboxPage:
    """One page of a listing, newest first. Iterating gives its items."""

    items: tuple[SandboxInfo, ...]
    page: int
    page_size: int
    total_items: int
    total_pages: int
    has_next_page: bool

    def __iter__(self) -> Iterator[SandboxInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @staticmethod
    def read(data: Any) -> SandboxPage:
        """From the wire's listing."""
        paging = data["pagination"]
        return SandboxPage(
            items=tuple(SandboxInfo.read(item) for item in data["items"]),
            page=int(paging["page"]),
            page_size=int(paging["pageSize"]),
            total_items=int(paging["totalItems"]),
            total_pages=int(paging["totalPages"]),
            has_next_page=bool(paging["hasNextPage"]),
        )


@dataclass(frozen=True)
class Endpoint:
    """Where a port of a sandbox is reached. Send `headers` with every request to it."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    scheme: str = "http"

    @property
    def url(self) -> str:
        """The address with its scheme, without a trailing slash."""
        return f"{self.scheme}://{self.address}"

    @staticmethod
    def read(data: Any, scheme: str) -> Endpoint:
        """From the wire's Endpoint object, which carries no scheme of its own."""
        return Endpoint(str(data["endpoint"]).rstrip("/"), dict(data.get("headers") or {}), scheme)


@dataclass(frozen=True)
class KeyInfo:
    """An API key, without its secret. Keys with the same owner see the same sandboxes."""

    name: str
    owner: str
    scopes: tuple[str, ...]
    limits: Mapping[str, Any]
    usage: Mapping[str, Any]
    created_at: datetime
    rotated_at: datetime | None = None

    @staticmethod
    def read(data: Any) -> KeyInfo:
        """From the wire's key object."""
        return KeyInfo(
            name=str(data["name"]),
            owner=str(data["owner"]),
            scopes=tuple(data["scopes"]),
            limits=dict(data.get("limits") or {}),
            usage=dict(data.get("usage") or {}),
            created_at=moment(data["createdAt"]),
            rotated_at=moment(data["rotatedAt"]) if data.get("rotatedAt") else None,
        )

    @staticmethod
    def read_new(data: Any) -> tuple[KeyInfo, str]:
        """From the answer that also holds the secret."""
        return KeyInfo.read(data), str(data["key"])


@dataclass(frozen=True)
class Metrics:
    """What a sandbox uses, measured against its own limits."""

    cpu_count: float
    cpu_used_pct: float
    mem_total_mib: float
    mem_used_mib: float
    timestamp: int

    @staticmethod
    def read(data: Any) -> Metrics:
        """From the daemon's answer."""
        return Metrics(
            cpu_count=float(data["cpu_count"]),
            cpu_used_pct=float(data["cpu_used_pct"]),
            mem_total_mib=float(data["mem_total_mib"]),
            mem_used_mib=float(data["mem_used_mib"]),
            timestamp=int(data["timestamp"]),
        )


@dataclass(frozen=True)
class FileInfo:
    """One entry of the file system; a symbolic link is described itself, not what it points to.

    `mode` holds the permission bits as Python knows them (0o644).
    """

    path: str
    type: str
    size: int
    mode: int
    owner: str
    group: str
    modified_at: datetime
    created_at: datetime

    @staticmethod
    def read(data: Any) -> FileInfo:
        """From the wire, where a mode is a decimal number that looks octal."""
        return FileInfo(
            path=str(data["path"]),
            type=str(data.get("type") or "file"),
            size=int(data["size"]),
            mode=int(str(data["mode"]), 8),
            owner=str(data.get("owner", "")),
            group=str(data.get("group", "")),
            modified_at=moment(data["modified_at"]),
            created_at=moment(data["created_at"]),
        )


@dataclass(frozen=True)
class FileChange:
    """One change that was watched.

    `kind` is watching (armed), created, modified, written (closed after writing), attributes, deleted,
    renamed, overflow (changes were lost: list again), incomplete (a directory cannot be watched) or ended.
    """

    kind: str
    path: str
    renamed_from: str = ""
    is_directory: bool = False
    reason: str = ""

    @staticmethod
    def read(data: Any) -> FileChange:
        """From an event of the daemon."""
        return FileChange(
            kind=str(data["type"]),
            path=str(data.get("path") or ""),
            renamed_from=str(data.get("from") or ""),
            is_directory=bool(data.get("is_dir")),
            reason=str(data.get("reason") or ""),
        )


@dataclass(frozen=True)
class Process:
    """One process of a sandbox."""

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    user: str
    state: str
    threads: int
    memory_mib: float
    cpu_seconds: float

    @staticmethod
    def read(data: Any) -> Process:
        """From the daemon's answer."""
        return Process(
            pid=int(data["pid"]),
            parent=int(data["ppid"]),
            name=str(data["name"]),
            command=tuple(data.get("command") or ()),
            user=str(data["user"]),
            state=str(data["state"]),
            threads=int(data["threads"]),
            memory_mib=float(data["rss_mib"]),
            cpu_seconds=float(data["cpu_seconds"]),
        )


def parse(read: Callable[[Any], T], data: Any) -> T:
    """`read(data)`, with a typed error when the answer has not the promised shape."""
    try:
        return read(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RuntimeFailure(
            f"the answer has not the promised shape ({type(error).__name__}: {error}): {str(data)[:200]}",
            code=BAD_ANSWER,
            hint="compare the versions of client and server with `osb version`",
        ) from error


def moment(text: str) -> datetime:
    """A time of the wire, always with its zone; UTC where none is written."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
