# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which buckets may be asked for, and with which options of `ossfs`.

All of it becomes words of a program that root runs, so each is held to a form that can be nothing else.
"""

from __future__ import annotations

import re

from casulo.model.errors import Code, InvalidRequest
from casulo.model.volume import Bucket, KeyedBucket

BY_HAND = "mount the bucket on the host below an allowed path, and use it as a host volume"

OPTIONS = frozenset(
    (
        "connect_timeout",
        "enable_noobj_cache",
        "max_dirty_data",
        "max_stat_cache_size",
        "mp_umask",
        "multipart_size",
        "multireq_max",
        "noxattr",
        "parallel_count",
        "readwrite_timeout",
        "retries",
        "stat_cache_expire",
        "umask",
    )
)
"""None of them names a file of the host, a user, or what the kernel is to allow."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(
    r"(https?://)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?"
)
_OPTION = re.compile(r"([a-z_]+)(=[0-9]{1,10})?")
_KEY = re.compile(r"[!-9;-~]{1,256}:[!-9;-~]{1,256}")
_MAX_OPTIONS = 16


def check(name: str, bucket: Bucket) -> None:
    """InvalidRequest naming what is wrong with the bucket of the volume `name`; the key is never shown."""
    if not _BUCKET.fullmatch(bucket.bucket):
        hint = "use 3 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        raise _invalid(name, f"ossfs.bucket {bucket.bucket!r} is no bucket", Code.VOLUME_INVALID_BUCKET, hint)
    if len(bucket.endpoint) > 253 or not _ENDPOINT.fullmatch(bucket.endpoint):
        what = f"ossfs.endpoint {bucket.endpoint!r} is no endpoint"
        hint = "use a domain name, such as oss.example.com; addresses are not taken"
        raise _invalid(name, what, Code.VOLUME_INVALID_BUCKET_ENDPOINT, hint)
    if len(bucket.options) > _MAX_OPTIONS:
        what = f"ossfs.options: more than {_MAX_OPTIONS}"
        raise _invalid(name, what, Code.VOLUME_INVALID_BUCKET_OPTION)
    for option in bucket.options:
        _check_option(name, option)
    if isinstance(bucket, KeyedBucket) and not _KEY.fullmatch(bucket.key.reveal()):
        what = "ossfs.accessKeyId and accessKeySecret must be 1 to 256 visible ASCII characters but ':'"
        raise _invalid(name, what, Code.VOLUME_INVALID_BUCKET_KEY)


def _check_option(name: str, option: str) -> None:
    found = _OPTION.fullmatch(option)
    if found is None or found[1] not in OPTIONS:
        hint = "allowed, with '=' and a number where they take one: " + ", ".join(sorted(OPTIONS))
        what = f"ossfs.options: {option!r} is not allowed"
        raise _invalid(name, what, Code.VOLUME_INVALID_BUCKET_OPTION, hint)


def _invalid(name: str, what: str, code: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"volume {name!r}: {what}", code=code, hint=hint)
