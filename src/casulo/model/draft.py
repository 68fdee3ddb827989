# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From what a caller wrote to a complete spec: defaults filled in, nonsense refused.

A `Draft` is the create request as parsed at the edge. `complete` is the one place that turns it
into a `Spec`, and it refuses whatever could only be ignored later.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from casulo.model import idle, labels, memory, quantities, volumes
from casulo.model.credentials import Credentials
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.policy import EGRESS_FEATURE, VAULT_FEATURE, NetworkPolicy
from casulo.model.sandbox import (
    DEFAULT_ENTRYPOINT,
    MIN_TIMEOUT_SECONDS,
    Hook,
    Isolation,
    Platform,
    Resources,
    Spec,
)
from casulo.model.volume import Volume

ISOLATION = "casulo.isolation"
RUNTIME = "casulo.runtime"
DOCKER_RUNTIME = "casulo.docker_runtime"
RENEW_ON_ACCESS = "access.renew.extend.seconds"
POOL_REF = "poolRef"
ISOLATED_SESSIONS = "bootstrap.execd.isolation"
HOST_IMAGE = "host"

AUTO_RESUME = "casulo.auto_resume"
_OWN_EXTENSIONS = (ISOLATION, RUNTIME, DOCKER_RUNTIME, AUTO_RESUME, idle.IDLE_PAUSE, *memory.EXTENSIONS)
_RESOURCES = ("cpu", "memory", "pids", "shm", "disk", "gpu")
ISOLATED_SESSIONS_FEATURE = "isolated_sessions"
DOCKER_RUNTIME_FEATURE = "docker_runtime"
_SWITCH = ("enable", "disable")
_NEEDED_FEATURE = {"disk": "limits.disk", "gpu": "gpu"}
"""Resources that only some runtimes can limit or give, and the feature by which they declare it."""

_PLATFORMS = {"os": ("linux", "windows"), "arch": ("amd64", "arm64")}
MIN_MEMORY_BYTES = 16 << 20
_MAX_WORD_BYTES = (128 << 10) - 1
_MAX_WORDS_BYTES = 1 << 20
"""What Linux takes as one argument or variable, and a safe share of what it takes altogether."""

_RENEW_RANGE = range(300, 86401)


@dataclass(frozen=True)
class Draft:
    """A create request as the caller meant it, before any default.

    `entrypoint` None leaves it to the image. `isolation` may also be given as an extension, which wins.
    `credentials` are for the image's registry, and are not part of the spec. With a `snapshot_id` the
    image is the snapshot's, and is filled in by `casulo.model.snapshot.restored`.
    """

    image: str
    entrypoint: tuple[str, ...] | None = None
    resource_limits: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    platform: Platform | None = None
    timeout_seconds: int | None = None
    isolation: Isolation = Isolation.AUTO
    pre_start: Hook | None = None
    periodic: tuple[Hook, ...] = ()
    volumes: tuple[Volume, ...] = ()
    credentials: Credentials | None = None
    snapshot_id: str | None = None
    network_policy: NetworkPolicy | None = None
    credential_proxy: bool = False
    lineage: tuple[str, ...] = ()


@dataclass(frozen=True)
class Defaults:
    """What a draft gets when it does not say; `max_timeout_seconds` None is no limit."""

    cpu: str = "1"
    memory: str = "512Mi"
    pids: int = 512
    shm: str = "256Mi"
    max_timeout_seconds: int | None = None
    network_policy: NetworkPolicy | None = None


def complete(
    draft: Draft,
    defaults: Defaults,
    *,
    features: Collection[str] = (),
    missing: Mapping[str, str] | None = None,
) -> Spec:
    """The spec of `draft`, or InvalidRequest naming the first thing that is wrong.

    `features` is what the chosen runtime declares; `missing` says why something is not among them.
    """
    labels.check(draft.metadata)
    _check_env(draft.env)
    _check_extensions(draft.extensions)
    _check_sessions(draft.extensions, features, missing or {})
    idle.check(draft.extensions, features, missing or {})
    memory.check(draft.extensions, bool(draft.volumes), features, missing or {})
    _check_docker_runtime(draft.extensions, features, missing or {})
    _check_timeout(draft.timeout_seconds, defaults.max_timeout_seconds)
    _check_declared(draft.resource_limits, features, missing or {})
    volumes.check(draft.volumes, features, missing)
    policy = _policy(draft, defaults, features, missing or {})
    _check_credential_proxy(draft, policy, features, missing or {})
    return Spec(
        image=_image(draft.image),
        entrypoint=_entrypoint(draft),
        resources=_resources(draft.resource_limits, defaults),
        resource_limits=dict(draft.resource_limits),
        env=dict(draft.env),
        extensions=dict(draft.extensions),
        isolation=isolation_of(draft),
        platform=_platform(draft.platform),
        timeout_seconds=draft.timeout_seconds,
        pre_start=draft.pre_start,
        periodic=draft.periodic,
        volumes=draft.volumes,
        snapshot_id=draft.snapshot_id,
        network_policy=policy,
        credential_proxy=draft.credential_proxy,
        lineage=draft.lineage,
    )


def isolation_of(draft: Draft) -> Isolation:
    """The isolation that was asked for, by extension or by field."""
    text = draft.extensions.get(ISOLATION)
    if text is None:
        return draft.isolation
    try:
        return Isolation(text)
    except ValueError:
        raise _invalid(f"extension {ISOLATION}: unknown isolation {text!r}", [*Isolation], text) from None


def renew_seconds(extensions: Mapping[str, str]) -> int | None:
    """By how much each proxied access extends the sandbox's life; None when it does not."""
    text = extensions.get(RENEW_ON_ACCESS)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) in _RENEW_RANGE):
        raise _invalid(f"extension {RENEW_ON_ACCESS}: {text!r} is not a number of seconds from 300 to 86400")
    return int(text)


def isolated_sessions(extensions: Mapping[str, str]) -> bool:
    """Whether the sandbox may have isolated sessions."""
    return extensions.get(ISOLATED_SESSIONS) == "enable"


def resumes_on_access(extensions: Mapping[str, str]) -> bool:
    """Whether somebody who wants to reach the paused sandbox resumes it."""
    return extensions.get(AUTO_RESUME) == "enable"


def ends_at(start: datetime, seconds: int | None) -> datetime | None:
    """`start` plus the timeout, None without one; InvalidRequest beyond the calendar's end."""
    if seconds is None:
        return None
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        raise _invalid(f"timeout: {seconds} seconds from now is no date") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like `word`, or lists them all."""
    words = [str(k) for k in known]
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(words)


def _invalid(message: str, known: Iterable[str] = (), word: str = "") -> InvalidRequest:
    hint = nearest(word, known) if word else ""
    return InvalidRequest(message, code=Code.INVALID_PARAMETER, hint=hint)


def _image(uri: str) -> str:
    if not uri or uri != uri.strip() or not uri.isprintable() or " " in uri:
        raise _invalid(f"image: {uri!r} is not an image reference")
    return uri


def _entrypoint(draft: Draft) -> tuple[str, ...]:
    """An empty tuple leaves it to the image; the machine's own image has nothing to say."""
    if draft.entrypoint is None:
        return DEFAULT_ENTRYPOINT if draft.image == HOST_IMAGE else ()
    if not draft.entrypoint or not draft.entrypoint[0] or any("\0" in word for word in draft.entrypoint):
        raise InvalidRequest(
            "entrypoint: the first word must name a program, and no word may hold a NUL character",
            code=Code.INVALID_ENTRYPOINT,
            hint='give a program and its arguments as a list, e.g. ["sleep", "600"]',
        )
    _check_words("entrypoint", draft.entrypoint)
    return tuple(draft.entrypoint)


def _check_words(what: str, words: Collection[str]) -> None:
    """Refuse what the kernel would refuse later, or what would arrive changed."""
    try:
        sizes = [len(word.encode()) + 1 for word in words]
    except UnicodeEncodeError:
        raise _invalid(f"{what}: half a surrogate pair is no text") from None
    if max(sizes, default=0) > _MAX_WORD_BYTES:
        raise _invalid(f"{what}: one of the texts is longer than {_MAX_WORD_BYTES >> 10} KiB")
    if sum(sizes) > _MAX_WORDS_BYTES:
        raise _invalid(f"{what}: all together are longer than {_MAX_WORDS_BYTES >> 10} KiB")


def _resources(limits: Mapping[str, str], defaults: Defaults) -> Resources:
    disk = limits.get("disk")
    whole = _memory(limits.get("memory", defaults.memory))
    return Resources(
        cpu_millis=quantities.cpu_millis(limits.get("cpu", defaults.cpu)),
        memory_bytes=whole,
        pids=quantities.count("pids", limits.get("pids", str(defaults.pids))),
        shm_bytes=_shm(limits.get("shm"), defaults.shm, whole),
        disk_bytes=quantities.whole_bytes("disk", disk) if disk is not None else None,
    )


def _memory(text: str) -> int:
    whole = quantities.whole_bytes("memory", text)
    if whole < MIN_MEMORY_BYTES:
        raise _invalid(f"memory: {text!r} is too little to start anything; ask for 16Mi or more")
    return whole


def _shm(asked: str | None, default: str, whole: int) -> int:
    """Files in shared memory count as memory and cannot be reclaimed: they must leave room for programs."""
    if asked is None:
        return min(quantities.whole_bytes("shm", default), whole // 2)
    size = quantities.whole_bytes("shm", asked)
    if size > whole * 3 // 4:
        raise _invalid(f"shm: {asked!r} is more than three quarters of the memory limit; raise memory")
    return size


def _check_declared(limits: Mapping[str, str], features: Collection[str], missing: Mapping[str, str]) -> None:
    for name in limits:
        if name not in _RESOURCES:
            raise _invalid(f"resourceLimits: unknown resource {name!r}", _RESOURCES, name)
        needed = _NEEDED_FEATURE.get(name)
        if needed and needed not in features:
            raise Unsupported(
                f"resourceLimits: {name} is not available here",
                code=Code.NOT_SUPPORTED,
                hint=missing.get(needed, f"leave {name} out; `osb doctor` lists what this host can do"),
            )


def _check_env(env: Mapping[str, str]) -> None:
    _check_words("env", [f"{key}={value}" for key, value in env.items()])
    for key, value in env.items():
        if not key or "=" in key or "\0" in key or "\0" in value:
            raise _invalid(f"env: {key!r} cannot be an environment variable")
        if key == "OPENSANDBOX_LIFECYCLE":
            raise _invalid(f"env: {key} is reserved")
        if key.startswith("OPENSANDBOX_EGRESS_"):
            raise _invalid(f"env: {key} configures an egress helper, and this sandbox has none")


def _check_extensions(extensions: Mapping[str, str]) -> None:
    renew_seconds(extensions)
    if extensions.get(AUTO_RESUME, "disable") not in _SWITCH:
        raise _invalid(f"extension {AUTO_RESUME}: {extensions[AUTO_RESUME]!r} is not one of {_SWITCH}")
    for key in extensions:
        if key.startswith("casulo.") and key not in _OWN_EXTENSIONS:
            raise _invalid(f"extensions: unknown key {key!r}", _OWN_EXTENSIONS, key)


def _check_sessions(
    extensions: Mapping[str, str], features: Collection[str], missing: Mapping[str, str]
) -> None:
    text = extensions.get(ISOLATED_SESSIONS, "disable")
    if text not in _SWITCH:
        raise _invalid(f"extension {ISOLATED_SESSIONS}: {text!r} is not known", _SWITCH, text)
    if isolated_sessions(extensions) and ISOLATED_SESSIONS_FEATURE not in features:
        why = missing.get(ISOLATED_SESSIONS_FEATURE, "the runtime of this sandbox cannot nest namespaces")
        raise Unsupported(
            f"extension {ISOLATED_SESSIONS}: isolated sessions are not available here: {why}",
            code=Code.NOT_SUPPORTED,
            hint="leave the extension out, and use one sandbox per session",
        )


def _check_docker_runtime(
    extensions: Mapping[str, str], features: Collection[str], missing: Mapping[str, str]
) -> None:
    if DOCKER_RUNTIME in extensions and DOCKER_RUNTIME_FEATURE not in features:
        why = missing.get(DOCKER_RUNTIME_FEATURE, "the runtime of this sandbox is not Docker's")
        raise Unsupported(
            f"extension {DOCKER_RUNTIME}: no OCI runtime can be chosen here: {why}",
            code=Code.NOT_SUPPORTED,
            hint="leave the extension out, or choose another runtime",
        )


def _policy(
    draft: Draft, defaults: Defaults, features: Collection[str], missing: Mapping[str, str]
) -> NetworkPolicy | None:
    """The policy that was asked for, else the server's; a runtime that cannot enforce it is refused."""
    policy = draft.network_policy if draft.network_policy is not None else defaults.network_policy
    if policy is not None and EGRESS_FEATURE not in features:
        raise Unsupported(
            "networkPolicy: the runtime of this sandbox cannot enforce a policy",
            code=Code.NOT_SUPPORTED,
            hint=missing.get(EGRESS_FEATURE, "leave it out, or choose another runtime"),
        )
    return policy


def _check_credential_proxy(
    draft: Draft, policy: NetworkPolicy | None, features: Collection[str], missing: Mapping[str, str]
) -> None:
    if not draft.credential_proxy:
        return
    if VAULT_FEATURE not in features:
        raise Unsupported(
            "credentialProxy: the runtime of this sandbox cannot inject credentials",
            code=Code.NOT_SUPPORTED,
            hint=missing.get(VAULT_FEATURE, "leave it out, or choose another runtime"),
        )
    if policy is None:
        raise _invalid("credentialProxy needs a networkPolicy: it injects into what that lets through")


def _check_timeout(seconds: int | None, limit: int | None) -> None:
    if seconds is None:
        return
    if seconds < MIN_TIMEOUT_SECONDS:
        raise _invalid(f"timeout: {seconds} s is shorter than the least of {MIN_TIMEOUT_SECONDS} s")
    if limit is not None and seconds > limit:
        raise _invalid(f"timeout: {seconds} s is longer than this server's limit of {limit} s")


def _platform(platform: Platform | None) -> Platform | None:
    if platform is None:
        return None
    wanted = Platform(platform.os.lower(), platform.arch.lower())
    for name, value in (("os", wanted.os), ("arch", wanted.arch)):
        if value not in _PLATFORMS[name]:
            raise _invalid(f"platform.{name}: {value!r} is not known", _PLATFORMS[name], value)
    if wanted.os != "linux":
        raise Unsupported(
            f"platform.os: no sandbox of this server runs {wanted.os}",
            code=Code.NOT_SUPPORTED,
            hint="leave the platform out, or ask for linux",
        )
    return wanted
