# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Registries, `docker save` archives and Docker daemons, spoken to by skopeo.

Manifests come from `skopeo inspect --raw`. Blobs come through its image proxy: one process answers
requests on a socket and hands over each blob as a pipe, so that a layer is unpacked while it arrives
and is never on disk as an archive. Credentials are in a file that only we can read.
"""

from __future__ import annotations

import array
import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from casulo.images.faults import explained, silent
from casulo.images.manifest import LARGEST, Descriptor
from casulo.images.reference import DAEMON, DOCKER, Reference
from casulo.model.errors import CasuloError, Code, Unsupported

_REPLY = 64 << 10
_PIPE = 1 << 20
_POLICY = Path("/etc/containers/policy.json")


@dataclass(frozen=True)
class Access:
    """How to get at a source. `insecure` allows HTTP and certificates that cannot be checked."""

    username: str = ""
    password: str = ""
    auth_file: str = ""
    insecure: bool = False
    docker_host: str = ""
    stall_seconds: float = 60


class Skopeo:
    """One image in a registry, an archive or a daemon. `folder` is private to this object's job."""

    def __init__(self, reference: Reference, access: Access, folder: Path) -> None:
        self._reference = reference
        self._access = access
        self._folder = folder
        self._program = program()
        self._auth = _auth_file(reference, access, folder)
        self._idle: list[_Proxy] = []
        self._serial = itertools.count()

    def manifest(self, digest: str = "") -> bytes:
        """As it is in the registry, byte for byte."""
        command = [*self._command("inspect", "--raw"), self._transport(digest)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._environment,
                timeout=self._access.stall_seconds,
            )
        except subprocess.TimeoutExpired:
            raise silent(self._reference, self._access.stall_seconds) from None
        if done.returncode != 0:
            raise explained(self._reference, done.stderr.decode(errors="replace"))
        return done.stdout[: LARGEST + 1]

    @contextmanager
    def blob(self, descriptor: Descriptor, pinned: str) -> Iterator[BinaryIO]:
        """A pipe from a proxy. Each serves one blob at a time, so there are as many as readers."""
        proxy = self._idle.pop() if self._idle else self._open_proxy(pinned)
        try:
            with proxy.blob(descriptor) as pipe:
                yield pipe
        except BaseException:
            proxy.close()
            raise
        self._idle.append(proxy)

    def close(self) -> None:
        """End the proxies."""
        while self._idle:
            self._idle.pop().close()

    def _open_proxy(self, pinned: str) -> _Proxy:
        command = self._command("experimental-image-proxy")
        log = self._folder / f"proxy-{next(self._serial)}.log"
        proxy = _Proxy(self._reference, command, self._environment, self._access.stall_seconds, log)
        try:
            proxy.open(self._transport(pinned))
        except BaseException:
            proxy.close()
            raise
        return proxy

    def _command(self, *words: str) -> list[str]:
        options = ["--authfile", str(self._auth)]
        if self._access.insecure:
            options.append("--tls-verify=false")
        if self._access.docker_host:
            options += ["--daemon-host", self._access.docker_host]
        policy = [] if _POLICY.exists() else ["--insecure-policy"]  # an administrator's policy is obeyed
        return [self._program, *policy, "--tmpdir", str(self._folder), *words, *options]

    def _transport(self, digest: str) -> str:
        reference = self._reference
        if reference.transport == DOCKER:
            return f"docker://{(reference.at(digest) if digest else reference).canonical}"
        if reference.transport == DAEMON:
            return f"{DAEMON}:{reference.familiar.removeprefix(DAEMON + ':')}"
        return reference.canonical

    @property
    def _environment(self) -> dict[str, str]:
        """Nothing of the server's own: no key in its variables, no login in its home."""
        kept = {
            k: v for k, v in os.environ.items() if k.lower().endswith("_proxy") or k.startswith("SSL_CERT")
        }
        path = os.environ.get("PATH", os.defpath)
        return {**kept, "PATH": path, "HOME": str(self._folder), "TMPDIR": str(self._folder)}


def _auth_file(reference: Reference, access: Access, folder: Path) -> Path:
    if access.auth_file and not access.username:
        return Path(access.auth_file)
    auths = {}
    if access.username:
        pair = f"{access.username}:{access.password}".encode()
        auths[reference.registry] = {"auth": base64.b64encode(pair).decode()}
    path = folder / "auth.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        json.dump({"auths": auths}, file)
    return path


def program() -> str:
    """Where skopeo is; Unsupported says how to get it."""
    found = shutil.which("skopeo")
    if found is None:
        raise Unsupported(
            "images are fetched by skopeo, which is not installed",
            code=Code.HOST_UNSUPPORTED,
            hint="apt-get install skopeo, or import a root file system with `osb image import`",
        )
    return found


class _Proxy:
    """The client side of skopeo's image proxy: JSON requests, answers with a pipe attached."""

    def __init__(
        self, reference: Reference, command: list[str], env: dict[str, str], stall: float, log: Path
    ) -> None:
        self._reference = reference
        self._stall = stall
        self._log = log
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(stall)
        with theirs, log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=errors, stderr=errors, env=env
            )
        self._image = 0

    def open(self, name: str) -> None:
        """Choose the image that later requests are about."""
        self._call("Initialize")
        self._image = int(self._call("OpenImage", name)[0])

    @contextmanager
    def blob(self, descriptor: Descriptor) -> Iterator[BinaryIO]:
        """Its bytes; the far side's complaint is raised when the reader has come to the end.

        FinishPipe is what closes the pipe when all was written, so it is asked for beforehand.
        """
        _, pipe_id, pipe = self._call("GetBlob", self._image, descriptor.digest, descriptor.size)
        reader = _Pipe(pipe, self._reference, self._stall)
        try:
            self._send("FinishPipe", pipe_id)
            try:
                yield cast(BinaryIO, BufferedReader(reader, _PIPE))
            except CasuloError:
                if reader.ended:  # perhaps only because the other side broke off; it knows better why
                    self._receive()
                raise
            self._receive()
        finally:
            reader.close()

    def close(self) -> None:
        """End the process, busy or not."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _call(self, method: str, *arguments: Any) -> tuple[Any, int, int]:
        self._send(method, *arguments)
        return self._receive()

    def _send(self, method: str, *arguments: Any) -> None:
        try:
            self._socket.sendall(json.dumps({"method": method, "args": arguments}).encode())
        except OSError as error:
            raise explained(self._reference, f"{error.strerror}: {self._words()}") from error

    def _receive(self) -> tuple[Any, int, int]:
        """(value, number of the pipe, the pipe)."""
        try:
            raw, descriptors = _received(self._socket)
        except TimeoutError:
            raise silent(self._reference, self._stall) from None
        except OSError as error:
            raise explained(self._reference, f"{error.strerror}: {self._words()}") from error
        if not raw:
            raise explained(self._reference, self._words())
        reply = json.loads(raw)
        if not reply.get("success"):
            raise explained(self._reference, str(reply.get("error")))
        return reply.get("value"), int(reply.get("pipeid") or 0), descriptors[0] if descriptors else -1

    def _words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _received(sock: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    raw, ancillary, _, _ = sock.recvmsg(_REPLY, room, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return raw, found.tolist()


class _Pipe(RawIOBase):
    """A pipe that must not stay silent for longer than `stall` seconds."""

    def __init__(self, descriptor: int, reference: Reference, stall: float) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._reference = reference
        self._stall = stall
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.ended = False
        with contextlib.suppress(OSError):  # a limit of the user's; it then stays small
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._poll.poll(self._stall * 1000):
            raise silent(self._reference, self._stall)
        count = os.readv(self._descriptor, [buffer])
        self.ended = count == 0
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
