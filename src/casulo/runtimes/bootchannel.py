# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The server's end of the boot channel: how an execution daemon is told what to be.

One message goes in, the boot document and a few descriptors; one comes back, ready or failed. A daemon
that is parked gets the descriptors before, in a message of their own that it answers too.
After that the socket is silent and the server may die without consequence for the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casulo.model.errors import CasuloError, Code, InvalidRequest, RuntimeFailure, TimedOut
from casulo.model.sandbox import EXECD_PORT, Hook, Spec

VERSION = 1
DESCRIPTORS = ("events", "log", "cgroup", "pids")
"""Optional descriptors besides `boot`, in the order in which they are sent."""

ENVS_FILE = "/opt/opensandbox/.env"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_REPLY_LIMIT = 64 * 1024


@dataclass(frozen=True)
class BootDocument:
    """Everything that a daemon needs to know about its sandbox; sent once, kept nowhere."""

    sandbox_id: str
    access_token: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]
    listen: tuple[str, ...] = (f"tcp://0.0.0.0:{EXECD_PORT}",)
    cwd: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    envs_file: str = ENVS_FILE
    log_cap_bytes: int = 10 * 1024 * 1024
    stop_grace_ms: int = 5000
    pre_start: Hook | None = None
    periodic: tuple[Hook, ...] = ()
    isolated_dir: str = ""
    trusted_ca: str = ""
    """A certificate that the sandbox's programs shall trust besides the public ones."""

    def encode(self) -> bytes:
        """The document as the daemon reads it."""
        return json.dumps(self.body()).encode()

    def body(self) -> dict[str, Any]:
        """Its members; absent ones are left out."""
        body: dict[str, Any] = {
            "sandbox_id": self.sandbox_id,
            "access_token": self.access_token,
            "listen": self.listen,
            "entrypoint": self.entrypoint,
            "env": dict(self.env),
            "cwd": self.cwd,
            "user": {"uid": self.uid, "gid": self.gid, "groups": self.groups},
            "directories": self.directories,
            "envs_file": self.envs_file,
            "log_cap_bytes": self.log_cap_bytes,
            "stop_grace_ms": self.stop_grace_ms,
        }
        if self.trusted_ca:
            body["ca"] = {"certificate": self.trusted_ca, "roots": public_roots()}
        if self.isolated_dir:
            body["isolated_dir"] = self.isolated_dir
        if self.pre_start:
            body["pre_start"] = _hook(self.pre_start)
        if self.periodic:
            body["periodic"] = [_hook(hook) for hook in self.periodic]
        return body


def public_roots() -> str:
    """This host's public roots, for images that have none; empty when it has none either."""
    for name in _BUNDLES:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return Path(name).read_text()
    return ""


def _hook(hook: Hook) -> dict[str, Any]:
    whole = {
        "name": hook.name,
        "schedule": hook.schedule,
        "command": hook.command,
        "timeout_seconds": hook.timeout_seconds,
    }
    return {key: value for key, value in whole.items() if value}


def start_limit(base_seconds: float, spec: Spec) -> float:
    """Seconds that a start may take: what the machine needs, and what the caller's own hook may."""
    return base_seconds + (spec.pre_start.timeout_seconds if spec.pre_start else 0)


@dataclass(frozen=True)
class Ready:
    """The daemon's answer: its version and the addresses on which it really listens."""

    version: str
    listen: tuple[str, ...] = field(default=())


def environment(
    sandbox_id: str,
    spec: Spec,
    *,
    image_env: Mapping[str, str] | None = None,
    home: str = "/root",
    envs_file: str = ENVS_FILE,
) -> dict[str, str]:
    """The whole environment of user processes: image, then ours, then the caller's, last wins."""
    return {
        "PATH": DEFAULT_PATH,
        "HOME": home,
        **(image_env or {}),
        "EXECD_ENVS": envs_file,
        **spec.env,
        "OPENSANDBOX_ID": sandbox_id,
    }


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """(ours, the daemon's); both close on exec, so the daemon's must be passed on purpose."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, document: BootDocument, fds: Mapping[str, int]) -> None:
    """Send the boot message. It fits the empty socket's buffer, so this does not block."""
    boot = _memory_file(document.encode())
    try:
        _send_descriptors(sock, {"boot": boot, **fds})
    finally:
        os.close(boot)


def park_blocking(sock: socket.socket, fds: Mapping[str, int], timeout: float) -> None:
    """Let the daemon get ready for a sandbox that is not known yet; its boot message then brings no `fds`."""
    sock.settimeout(timeout)
    _send_descriptors(sock, fds)
    if json.loads(_reply(sock, timeout) or "{}").get("event") != "parked":
        raise died("it cannot be parked")


def _send_descriptors(sock: socket.socket, fds: Mapping[str, int]) -> None:
    names = [name for name in ("boot", *DESCRIPTORS) if name in fds]
    header = json.dumps({"v": VERSION, "fds": names}).encode()
    try:
        socket.send_fds(sock, [header], [fds[name] for name in names])
    except OSError as error:
        raise died(f"it did not take its boot message: {error.strerror}") from error


async def handshake(
    sock: socket.socket, document: BootDocument, fds: Mapping[str, int], timeout: float
) -> Ready:
    """Boot the daemon at the other end of `sock` and wait until it is ready.

    Close the parent's copy of the daemon's end first, or its death is seen only as a timeout.
    """
    sock.setblocking(False)
    send(sock, document, fds)
    try:
        async with asyncio.timeout(timeout):
            reply = await asyncio.get_running_loop().sock_recv(sock, _REPLY_LIMIT)
    except TimeoutError as error:
        raise too_slow(timeout) from error
    except OSError as error:
        raise died(f"the boot channel broke: {error.strerror}") from error
    return understand(reply)


def handshake_blocking(
    sock: socket.socket, document: BootDocument, fds: Mapping[str, int], timeout: float
) -> Ready:
    """`handshake` for a worker thread."""
    sock.settimeout(timeout)
    send(sock, document, fds)
    return understand(_reply(sock, timeout))


def _reply(sock: socket.socket, timeout: float) -> bytes:
    try:
        return sock.recv(_REPLY_LIMIT)
    except TimeoutError as error:
        raise too_slow(timeout) from error
    except OSError as error:
        raise died(f"the boot channel broke: {error.strerror}") from error


def waits(sock: socket.socket) -> bool:
    """Whether the daemon at the other end still waits for its boot message: it has not hung up."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return not poller.poll(0)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("casulo-boot", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)  # the offset travels with the descriptor
    except OSError:
        os.close(fd)
        raise
    return fd


def stream_message(document: BootDocument) -> bytes:
    """The one message to a daemon that boots through a stream of bytes: a line that holds the document."""
    return b'{"v":%d,"document":%s}\n' % (VERSION, document.encode())


def understand(reply: bytes) -> Ready:
    """The daemon's one answer, or the error that it is."""
    if not reply:
        raise died("it ended before it was ready")
    try:
        body = json.loads(reply)
        if body["event"] == "ready":
            return Ready(body["version"], tuple(body.get("listen", ())))
        if body["event"] == "failed":
            raise _refused(str(body["code"]), str(body["message"]))
    except (ValueError, KeyError, TypeError) as error:
        raise died(f"its answer is not understood: {reply[:200]!r}") from error
    raise died(f"its answer is not understood: {reply[:200]!r}")


def _refused(code: str, message: str) -> CasuloError:
    if code == Code.INVALID_ENTRYPOINT:
        return InvalidRequest(
            message, code=code, hint="name a program that exists inside the image and may be executed"
        )
    if code == Code.IMAGE_INVALID:
        return InvalidRequest(
            message, code=code, hint="the image's WORKDIR and VOLUMEs must be directories, or not there yet"
        )
    if code == Code.INVALID_PARAMETER:
        return InvalidRequest(message, code=code, hint="correct the request and send it again")
    return RuntimeFailure(message, code=code)


class Silent(RuntimeFailure):
    """The daemon gave no answer."""


def died(why: str) -> Silent:
    """The daemon gave no answer."""
    return Silent(
        f"the execution daemon did not start: {why}",
        code=Code.SANDBOX_START_FAILED,
        hint="the host's kernel log tells whether it was killed",
    )


@contextlib.contextmanager
def told_with(log: Path) -> Iterator[None]:
    """A daemon's silence inside is told with the last words of `log`, which goes with the sandbox."""
    try:
        yield
    except Silent as error:
        words = log.read_text(errors="replace").strip()[-2000:]
        if words:
            raise Silent(f"{error.message}; its log: {words}", code=error.code) from error
        raise


def too_slow(timeout: float) -> TimedOut:
    """The daemon may still answer, but nobody waits any longer."""
    return TimedOut(
        f"the execution daemon was not ready after {timeout:g} s",
        code=Code.SANDBOX_START_TIMEOUT,
        hint="the machine may be overloaded; raise [sandbox] start_timeout_seconds if it stays slow",
    )
