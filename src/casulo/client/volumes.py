# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a new sandbox mounts: directories of the server's host, named volumes, buckets of object storage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BUCKET_SCHEME = "bucket://"
KEY_VARIABLES = ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET")
"""Where the short form of a bucket takes its key from: a command line is no place for one."""


@dataclass(frozen=True)
class Volume:
    """One mount; make it with `Volume.host`, `Volume.named` or `Volume.bucket`.

    Sandbox.create(volumes=[Volume.named("cache", "/mnt/cache")])
    """

    mount_path: str
    source: dict[str, Any] = field(repr=False)  # it may hold a key
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
    def bucket(
        cls,
        name: str,
        endpoint: str,
        mount_path: str,
        *,
        key_id: str,
        key_secret: str,
        options: Sequence[str] = (),
        read_only: bool = False,
        sub_path: str = "",
    ) -> Volume:
        """A bucket of an object store, where the server's host has the program `ossfs`; `options` are its."""
        key = {"accessKeyId": key_id, "accessKeySecret": key_secret}
        asked: dict[str, Any] = {"bucket": name, "endpoint": endpoint, "version": "1.0", **key}
        if options:
            asked["options"] = list(options)
        return cls(mount_path, {"ossfs": asked}, read_only, sub_path)

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str] = os.environ) -> Volume:
        """From `SOURCE:MOUNT_PATH[:ro]`; a source that begins with a slash is a path of the host, and
        `bucket://NAME@ENDPOINT` a bucket, whose key is in OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET.

        ValueError when it is something else. The source may hold colons, the rest may not.
        """
        rest, _, last = text.rpartition(":")
        read_only = last == "ro" and ":" in rest
        source, _, mount_path = (rest if read_only else text).rpartition(":")
        if not source or not mount_path.startswith("/"):
            raise ValueError(f"{text!r} is not SOURCE:MOUNT_PATH or SOURCE:MOUNT_PATH:ro")
        if source.startswith(BUCKET_SCHEME):
            name, _, endpoint = source.removeprefix(BUCKET_SCHEME).partition("@")
            key_id, key_secret = _key(environ)
            return cls.bucket(
                name, endpoint, mount_path, key_id=key_id, key_secret=key_secret, read_only=read_only
            )
        made = cls.host if source.startswith("/") else cls.named
        return made(source, mount_path, read_only=read_only)

    def wire(self, number: int) -> dict[str, Any]:
        """The member of a create request; the wire wants a name for each."""
        body = {"name": f"volume-{number}", "mountPath": self.mount_path, "readOnly": self.read_only}
        if self.sub_path:
            body["subPath"] = self.sub_path
        return {**body, **self.source}


def _key(environ: Mapping[str, str]) -> tuple[str, str]:
    missing = [name for name in KEY_VARIABLES if not environ.get(name)]
    if missing:
        raise ValueError(
            f"a bucket's key is taken from the environment, and {' and '.join(missing)} is not set"
        )
    return environ[KEY_VARIABLES[0]], environ[KEY_VARIABLES[1]]
