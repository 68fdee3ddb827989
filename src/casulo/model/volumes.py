# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The rules for volumes that hold on every runtime, checked before anything is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from casulo.model import buckets
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.volume import Bucket, Claim, HostPath, Volume

HOST_FEATURE = "volumes.host"
NAMED_FEATURE = "volumes.named"
BUCKET_FEATURE = "volumes.ossfs"
SIZE_FEATURE = "volumes.size"
CLASS_FEATURE = "volumes.class"
EXCLUSIVE_FEATURE = "volumes.exclusive"
"""By these a runtime declares what it can mount, and which wishes about named volumes it can hold."""

RESERVED = ("/proc", "/sys", "/dev", "/opt/opensandbox")
"""What the runtime itself mounts: a volume may be neither there, nor below, nor above."""

ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_EXCLUSIVE_MODE = "ReadWriteOncePod"

_LEAVE_OUT = "leave it out; `osb doctor` lists what this host can do"
_OTHERWISE = {BUCKET_FEATURE: buckets.BY_HAND}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLAIM = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_.]{0,252}")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i)?")
_MAX_PATH_BYTES = 4095
_MAX_PART_BYTES = 255


def check(
    volumes: Sequence[Volume], features: Collection[str] = (), missing: Mapping[str, str] | None = None
) -> None:
    """InvalidRequest naming the first thing that is wrong; Unsupported for what is not among `features`."""
    for volume in volumes:
        _check_form(volume)
    _check_apart(volumes)
    for volume in volumes:
        _check_declared(volume, features, missing or {})


def owned(volumes: Sequence[Volume], owner: str) -> tuple[Volume, ...]:
    """The same, where names mean the volumes of `owner`: another's do not exist for this one."""
    return tuple(
        replace(volume, source=replace(volume.source, owner=owner))
        if isinstance(volume.source, Claim)
        else volume
        for volume in volumes
    )


def _check_form(volume: Volume) -> None:
    if not _NAME.fullmatch(volume.name):
        raise InvalidRequest(
            f"volumes: {volume.name!r} is no name for a volume",
            code=Code.VOLUME_INVALID_NAME,
            hint="use 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
        )
    _check_mount_path(volume)
    if volume.sub_path:
        _check_sub_path(volume)
    if isinstance(volume.source, HostPath):
        _check_host_path(volume, volume.source.host_path)
    elif isinstance(volume.source, Bucket):
        buckets.check(volume.name, volume.source)
    else:
        _check_claim(volume, volume.source)


def _check_mount_path(volume: Volume) -> None:
    path = volume.mount_path
    wrong = _wrong_absolute(path)
    if wrong:
        raise _invalid(volume, f"mountPath {path!r} {wrong}", Code.VOLUME_INVALID_MOUNT_PATH)
    for reserved in RESERVED:
        if _within(path, reserved) or _within(reserved, path):
            raise _invalid(
                volume,
                f"mountPath {path!r} would hide {reserved}, which the sandbox needs as it is",
                Code.VOLUME_INVALID_MOUNT_PATH,
                "mount it at a directory of its own, such as /mnt/data",
            )


def _check_sub_path(volume: Volume) -> None:
    path = volume.sub_path
    if path.startswith("/"):
        wrong = "is absolute, and must be relative to the volume"
    else:
        wrong = _wrong_parts(path, path.split("/"))
    if wrong:
        raise _invalid(volume, f"subPath {path!r} {wrong}", Code.VOLUME_INVALID_SUB_PATH)


def _check_host_path(volume: Volume, path: str) -> None:
    wrong = _wrong_absolute(path)
    if wrong:
        raise _invalid(volume, f"host.path {path!r} {wrong}", Code.VOLUME_INVALID_HOST_PATH)


def _check_claim(volume: Volume, claim: Claim) -> None:
    if not _CLAIM.fullmatch(claim.claim_name):
        raise _invalid(
            volume,
            f"pvc.claimName {claim.claim_name!r} is no name for a named volume",
            Code.VOLUME_INVALID_CLAIM_NAME,
            "use 1 to 253 letters, digits, '-', '_' and '.', with a letter or digit first",
        )
    if claim.size and not _SIZE.fullmatch(claim.size):
        raise _invalid(volume, f"pvc.storage {claim.size!r} is no size", Code.VOLUME_INVALID_BACKEND)
    for mode in claim.access_modes:
        if mode not in ACCESS_MODES:
            hint = "known: " + ", ".join(ACCESS_MODES)
            raise _invalid(
                volume, f"pvc.accessModes: {mode!r} is not known", Code.VOLUME_INVALID_BACKEND, hint
            )


def _wrong_absolute(path: str) -> str:
    """What is wrong with an absolute path, empty when nothing is."""
    if not path.startswith("/"):
        return "is not absolute"
    return "" if path == "/" else _wrong_parts(path, path[1:].split("/"))


def _wrong_parts(path: str, parts: Sequence[str]) -> str:
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    if any(part in ("", ".", "..") for part in parts):
        return "is not in its shortest form: no '.', no '..', no empty part, no '/' at the end"
    if "\0" in path:
        return "holds a NUL character"
    if max(sizes) > _MAX_PART_BYTES or sum(sizes) + len(sizes) > _MAX_PATH_BYTES:
        return "is longer than the system's limit"
    return ""


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _check_apart(volumes: Sequence[Volume]) -> None:
    names, places = set[str](), set[str]()
    for volume in volumes:
        if volume.name in names:
            raise InvalidRequest(
                f"volumes: two of them are called {volume.name!r}",
                code=Code.VOLUME_DUPLICATE_NAME,
                hint="give each a name of its own",
            )
        if volume.mount_path in places:
            raise _invalid(
                volume,
                f"mountPath {volume.mount_path!r} is taken by another volume",
                Code.VOLUME_INVALID_MOUNT_PATH,
            )
        names.add(volume.name)
        places.add(volume.mount_path)


def _check_declared(volume: Volume, features: Collection[str], missing: Mapping[str, str]) -> None:
    for feature, wish in _needs(volume):
        if feature not in features:
            raise Unsupported(
                f"volume {volume.name!r}: {wish}",
                code=Code.VOLUME_UNSUPPORTED,
                hint=missing.get(feature, _OTHERWISE.get(feature, _LEAVE_OUT)),
            )


def _needs(volume: Volume) -> list[tuple[str, str]]:
    """Features that this volume takes, each with what to say where it is lacking."""
    if isinstance(volume.source, HostPath):
        return [(HOST_FEATURE, "this runtime cannot mount paths of the host")]
    if isinstance(volume.source, Bucket):
        return [(BUCKET_FEATURE, "this runtime does not mount ossfs")]
    claim = volume.source
    needs = [(NAMED_FEATURE, "this runtime cannot mount named volumes")]
    if claim.size:
        needs.append((SIZE_FEATURE, f"pvc.storage {claim.size!r}: no limit on a volume's size is kept here"))
    if claim.storage_class:
        needs.append((CLASS_FEATURE, f"pvc.storageClass {claim.storage_class!r}: there are no classes here"))
    if _EXCLUSIVE_MODE in claim.access_modes:
        needs.append((EXCLUSIVE_FEATURE, f"pvc.accessModes {_EXCLUSIVE_MODE}: others are not kept away here"))
    return needs


def _invalid(volume: Volume, what: str, code: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"volume {volume.name!r}: {what}", code=code, hint=hint)
