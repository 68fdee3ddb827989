# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Volumes of the local runtime: host paths as the configuration allows, and named volumes that it keeps.

    <data>/volumes/<name>/data          what the sandboxes see
                         /record.json   whether it was made for a sandbox, and what then
                         /users/<id>    an empty file for each sandbox that uses it
    <data>/volumes/@<owner>/<name>/     the same for those who have an API key of their own
    <data>/sandboxes/<id>/claims.json   the names that the sandbox may be written down at

A volume appears, with its record and its first user, by one rename, and the sandbox's list is written
before. So whoever removes a sandbox finds all that was made for it, however far the making got.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from casulo import linux
from casulo.images.removal import remove_tree
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import Spec
from casulo.model.volume import Bucket, Claim, Volume
from casulo.model.volumes import BUCKET_FEATURE, HOST_FEATURE, NAMED_FEATURE
from casulo.runtimes.hostpaths import AllowedPaths, Place, opened
from casulo.runtimes.local.buckets import Buckets
from casulo.runtimes.local.mounting import VolumeMount, mapping_problem

_HALF_DONE = "."
"""First letter of directories that are being made or removed; no volume's name begins with it."""


@dataclass
class _Record:
    """`kept` once a sandbox has really started with it. `temporary` volumes go with their last sandbox."""

    temporary: bool = False
    kept: bool = False


class LocalVolumes:
    """Blocking, and safe to be called from several threads."""

    def __init__(self, data: Path, allowed: tuple[Path, ...]) -> None:
        self._folder = data / "volumes"
        self._paths = AllowedPaths(allowed, closed=(data, Path("/run/casulo")))
        self.buckets = Buckets()
        self._lock = threading.Lock()
        self._serial = itertools.count()
        self.missing: dict[str, str] = {}

    @property
    def features(self) -> set[str]:
        """What can be mounted; `missing` says why the rest cannot."""
        return {HOST_FEATURE, NAMED_FEATURE, BUCKET_FEATURE} - self.missing.keys()

    def open(self, user_namespace: Path | None) -> None:
        """Clear up what a crash left, and find out what can be mounted."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob(f"{_HALF_DONE}*"):
            remove_tree(path)
        problem = mapping_problem(self._folder, user_namespace)
        if isinstance(problem, Unsupported):  # other file systems of this host may be able to
            self.missing = {NAMED_FEATURE: f"{problem.message}; {problem.hint}"}
        elif problem is not None:
            reason = f"owners cannot be mapped, which takes Linux 5.12: {problem}"
            self.missing = dict.fromkeys((HOST_FEATURE, NAMED_FEATURE), reason)
        if self.buckets.missing:
            self.missing[BUCKET_FEATURE] = self.buckets.missing

    def check(self, spec: Spec) -> None:
        """Refuse what `acquire` would refuse, and make nothing."""
        for volume in spec.volumes:
            if isinstance(volume.source, Claim):
                if not volume.source.create_if_missing and not self._path(volume.source).is_dir():
                    raise _not_found(volume, volume.source)
            elif not isinstance(volume.source, Bucket):
                self._paths.place(volume)

    def acquire(self, sandbox_id: str, folder: Path, spec: Spec) -> tuple[VolumeMount, ...]:
        """Make and take what the sandbox asks for; `folder` is the sandbox's own. `release` undoes."""
        claims = [v for v in spec.volumes if isinstance(v.source, Claim)]
        if claims:
            names = sorted({_name(v.source) for v in claims if isinstance(v.source, Claim)})
            (folder / "claims.json").write_text(json.dumps(names))
        with self._lock:
            for volume in claims:
                self._take(sandbox_id, volume)
        self.buckets.mount(sandbox_id, spec.volumes)
        mounts = [mount for volume in spec.volumes for mount in self._mounts(sandbox_id, volume)]
        # A volume inside another one has to be mounted after it.
        return tuple(sorted(mounts, key=lambda mount: mount.target.count("/")))

    def keep(self, folder: Path) -> None:
        """The sandbox started: volumes that were made for it are real from now on."""
        with self._lock:
            for path in self._claimed(folder):
                record = _read(path)
                if not record.kept:
                    record.kept = True
                    _write(path, record)

    def release(self, sandbox_id: str, folder: Path) -> None:
        """The sandbox is gone: let go, and delete what was meant to go with it. Idempotent."""
        self.buckets.release(sandbox_id)
        doomed = []
        with self._lock:
            for path in self._claimed(folder):
                (path / "users" / sandbox_id).unlink(missing_ok=True)
                record = _read(path)
                unwanted = record.temporary or not record.kept
                if unwanted and not any((path / "users").iterdir()):
                    doomed.append(path.rename(self._half_done()))
        for path in doomed:
            remove_tree(path)

    def _claimed(self, folder: Path) -> list[Path]:
        try:
            names = json.loads((folder / "claims.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # cut off while it was written: nothing was taken
            return []
        return [path for name in names if (path := self._folder / name).is_dir()]

    def _take(self, sandbox_id: str, volume: Volume) -> None:
        claim = volume.source
        assert isinstance(claim, Claim)
        path = self._path(claim)
        if not path.is_dir():
            if not claim.create_if_missing:
                raise _not_found(volume, claim)
            self._make(path, sandbox_id, _Record(temporary=claim.delete_with_sandbox))
            return
        (path / "users" / sandbox_id).touch()
        record = _read(path)
        if record.temporary and not claim.delete_with_sandbox:
            record.temporary = False  # somebody counts on it
            _write(path, record)

    def _make(self, path: Path, user: str, record: _Record) -> None:
        draft = self._half_done()
        draft.mkdir()
        (draft / "data").mkdir()
        (draft / "users").mkdir()
        (draft / "users" / user).touch()
        _write(draft, record)
        path.parent.mkdir(exist_ok=True)
        draft.rename(path)

    def _mounts(self, sandbox_id: str, volume: Volume) -> list[VolumeMount]:
        """The volume, and whatever is mounted below it on the host. Makes directories that are missing."""
        place = self._place(sandbox_id, volume)
        with opened(place) as source:
            real = os.readlink(f"/proc/self/fd/{source}")
        below = linux.mounts_below(real)
        if below and os.geteuid() != 0:  # the kernel shows an ordinary user all of it or nothing
            raise Unsupported(
                f"volume {volume.name!r}: something is mounted at {below[0]}, below {real}",
                code=Code.VOLUME_UNSUPPORTED,
                hint="mount directories that are beside it, or run `osb server` as root",
            )
        return [
            VolumeMount(place, volume.mount_path, volume.read_only, not isinstance(volume.source, Bucket)),
            *(
                VolumeMount(Place(volume.name, path), volume.mount_path + path[len(real) :], volume.read_only)
                for path in below
            ),
        ]

    def _place(self, sandbox_id: str, volume: Volume) -> Place:
        if isinstance(volume.source, Bucket):
            return Place(volume.name, str(self.buckets.point(sandbox_id, volume)), "", volume.sub_path)
        if isinstance(volume.source, Claim):
            return Place(volume.name, str(self._path(volume.source).resolve() / "data"), "", volume.sub_path)
        return self._paths.place(volume)

    def _path(self, claim: Claim) -> Path:
        return self._folder / _name(claim)

    def _half_done(self) -> Path:
        return self._folder / f"{_HALF_DONE}{os.getpid()}-{next(self._serial)}"


def _name(claim: Claim) -> str:
    """Where it is below the folder; no claim's name may begin with `@`."""
    return f"@{claim.owner}/{claim.claim_name}" if claim.owner else claim.claim_name


def _not_found(volume: Volume, claim: Claim) -> InvalidRequest:
    return InvalidRequest(
        f"volume {volume.name!r}: there is no named volume {claim.claim_name!r}",
        code=Code.VOLUME_CLAIM_NOT_FOUND,
        hint="leave createIfNotExists out to have it made",
    )


def _read(path: Path) -> _Record:
    try:
        return _Record(**json.loads((path / "record.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # lost with the machine's power: delete nothing
        return _Record(kept=True)


def _write(path: Path, record: _Record) -> None:
    draft = path / "record.new"
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(path / "record.json")
