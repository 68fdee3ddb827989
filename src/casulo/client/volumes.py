# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a new sandbox mounts: directories of the server's host, and named volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Volume:
    """One mount; make it with `Volume.host` or `Volume.named`.

    Sandbox.create(volumes=[Volume.named("cache", "/mnt/cache")])
    """

    mount_path: str
    source: dict[str, Any]
    read_only: bool = False
    sub_path: str = ""

    @classmethod
    def host(cls, path: str, mount_path: str, *, read_only: bool = False, sub_path: str = "") -> Volume:
        """A directory or file of the server's host; its administrator says which may be mounted."""
        return cls(mount_path, {"host": {"path": path}}, read_only, sub_path)

    @classmethod
    def named(
        cls,
        name: str,
        mount_path: str,
        *,
        read_only: bool = False,
        sub_path: str = "",
        create: bool = True,
        delete_with_sandbox: bool = False,
    ) -> Volume:
        """A volume that the server keeps under a name, made when there is none unless `create` is off.

        With `delete_with_sandbox` one that was made for a sandbox goes with the last sandbox that uses it,
        unless one of them did not ask for that.
        """
        claim: dict[str, Any] = {"claimName": name}
        if not create:
            claim["createIfNotExists"] = False
        if delete_with_sandbox:
            claim["deleteOnSandboxTermination"] = True
        return cls(mount_path, {"pvc": claim}, read_only, sub_path)

    @classmethod
    def parse(cls, text: str) -> Volume:
        """From `SOURCE:MOUNT_PATH[:ro]`; a source that begins with a slash is a path of the host.

        ValueError when it is something else. The source may hold colons, the rest may not.
        """
        rest, _, last = text.rpartition(":")
        read_only = last == "ro" and ":" in rest
        source, _, mount_path = (rest if read_only else text).rpartition(":")
        if not source or not mount_path.startswith("/"):
            raise ValueError(f"{text!r} is not SOURCE:MOUNT_PATH or SOURCE:MOUNT_PATH:ro")
        made = cls.host if source.startswith("/") else cls.named
        return made(source, mount_path, read_only=read_only)

    def wire(self, number: int) -> dict[str, Any]:
        """The member of a create request; the wire wants a name for each."""
        body = {"name": f"volume-{number}", "mountPath": self.mount_path, "readOnly": self.read_only}
        if self.sub_path:
            body["subPath"] = self.sub_path
        return {**body, **self.source}
