# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Buckets of object stores: one `ossfs` process for each that a sandbox mounts, for as long as it is there.

    <run>/buckets/<id>/<volume>/mount      where the process shows the bucket on the host
                               /key        what opens it, for nobody but root; in memory, as all of <run>
                               /process    number of the process, written before it is `ossfs`
                               /log        what it says

A restart of the server leaves them alone. The key is nowhere else, so a start that was cut off by the end
of its server cannot be started over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from casulo import linux
from casulo.model.buckets import BY_HAND
from casulo.model.errors import Code, RuntimeFailure
from casulo.model.volume import Bucket, KeyedBucket, Volume
from casulo.runtimes.local import watch

_MOUNT_SECONDS = 30.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.02
_TOLD_BYTES = 500
_SCRIPT = 'echo $$ >"$1" && shift && exec "$@"'

log = structlog.get_logger(__name__)


class Buckets:
    """Blocking, and safe to be called from several threads, for one sandbox by one at a time."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self.missing = "the runtime is not open"

    def open(self, folder: Path, id_base: int, rootless: bool) -> None:
        """Find the program; `missing` says why buckets cannot be mounted, and is empty when they can."""
        self._folder, self._id_base = folder, id_base
        self._program = shutil.which("ossfs") or ""
        self.missing = ""
        if rootless:
            self.missing = "a server that is not run by root mounts no buckets"
        elif not self._program:
            self.missing = f"the program ossfs is not on the server's PATH: {BY_HAND}"

    def point(self, sandbox_id: str, volume: Volume) -> Path:
        """Where the volume's bucket is on the host."""
        assert self._folder is not None
        return self._folder / sandbox_id / volume.name / "mount"

    def mount(self, sandbox_id: str, volumes: Sequence[Volume]) -> None:
        """Mount all buckets among them; `release` undoes."""
        for volume in volumes:
            if isinstance(volume.source, Bucket):
                self._mount(self.point(sandbox_id, volume), volume, volume.source)

    def processes(self, sandbox_id: str) -> dict[str, tuple[int, int]]:
        """Number and start time of each process, by a key that names sandbox and volume."""
        found = {}
        for place in self._places(sandbox_id):
            pid = _process(place)
            found[f"{sandbox_id}/{place.name}"] = (pid, linux.start_time(pid) or 0 if pid else 0)
        return found

    def traces(self) -> set[str]:
        """Sandboxes that have buckets. While there is one, <run> must not be deleted: it shows them."""
        if self._folder is None or not self._folder.is_dir():
            return set()
        return {path.name for path in self._folder.iterdir()}

    def release(self, sandbox_id: str) -> None:
        """Unmount, end the processes, and remove the keys. Never touches what is in a bucket. Idempotent."""
        for place in self._places(sandbox_id):
            (place / "key").unlink(missing_ok=True)
            _unmount(place)
            for name in ("process", "log"):
                (place / name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (place / "mount").rmdir()
            place.rmdir()
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / sandbox_id).rmdir()

    def _places(self, sandbox_id: str) -> list[Path]:
        if self._folder is None:
            return []
        folder = self._folder / sandbox_id
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def _mount(self, point: Path, volume: Volume, bucket: Bucket) -> None:
        if not isinstance(bucket, KeyedBucket):
            raise _failed(volume, "its access key is kept nowhere, and the request that brought it is gone")
        place = point.parent
        for folder in (place.parent.parent, place.parent, place, point):
            folder.mkdir(mode=0o700, exist_ok=True)
        opener = os.open(place / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(opener, "w") as key:
            key.write(f"{bucket.bucket}:{bucket.key.reveal()}\n")
        process = self._run(place, bucket)
        deadline = time.monotonic() + _MOUNT_SECONDS
        while not _mounted(point):
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                said = _last_words(place / "log", bucket)
                raise _failed(volume, f"ossfs {'ended' if ended else 'does not get ready'}: {said}")
            time.sleep(_POLL_SECONDS)

    def _run(self, place: Path, bucket: Bucket) -> subprocess.Popen[bytes]:
        scheme = "" if "://" in bucket.endpoint else "https://"
        options = [
            f"passwd_file={place / 'key'}",
            f"url={scheme}{bucket.endpoint}",
            f"uid={self._id_base}",  # a FUSE mount cannot be mapped to the sandbox's user namespace
            f"gid={self._id_base}",
            "allow_other",
            *bucket.options,
        ]
        words = [self._program, bucket.bucket, str(place / "mount"), "-f", *(f"-o{o}" for o in options)]
        with (place / "log").open("wb") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", str(place / "process"), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,
            )


def told_ended(key: str) -> None:
    """Say that the process of a bucket has ended though its sandbox is there."""
    sandbox_id, _, volume = key.partition("/")
    log.warning("volume.ossfs_ended", sandbox=sandbox_id, volume=volume, hint="create the sandbox anew")


def _process(place: Path) -> int:
    """The bucket's process; 0 when there is none, or its number is another's by now."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((place / "process").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(place / "mount") in words:
            return pid
    return 0


def _mounted(point: Path) -> bool:
    return str(point) in linux.mounts_below(str(point.parent))


def _unmount(place: Path) -> None:
    """First the mount, upon which `ossfs` writes back what it has and ends; then what does not end."""
    point = place / "mount"
    ready = _mounted(point)
    linux.unmount(str(point))
    pid = _process(place)
    since = linux.start_time(pid) if pid else None
    if since is not None and not (ready and watch.await_end(pid, since, _END_SECONDS)):
        _end(pid, since)
        linux.unmount(str(point))  # it was still being made
    if _mounted(point):
        raise RuntimeFailure(f"{point} cannot be unmounted", code=Code.VOLUME_BUCKET_UNMOUNT_FAILED)


def _end(pid: int, since: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        descriptor = watch.open_process(pid, since)
        if descriptor is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        os.close(descriptor)
        if watch.await_end(pid, since, _END_SECONDS):
            return
        log.warning("volume.ossfs_does_not_end", process=pid, signal=number.name)


def _last_words(path: Path, bucket: KeyedBucket) -> str:
    said = path.read_text(errors="replace")
    for secret in bucket.key.reveal().split(":"):
        said = said.replace(secret, "(hidden)")
    return " ".join(said[-_TOLD_BYTES:].split()) or "without a word"


def _failed(volume: Volume, what: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"volume {volume.name!r}: the bucket cannot be mounted: {what}", code=Code.VOLUME_BUCKET_MOUNT_FAILED
    )
