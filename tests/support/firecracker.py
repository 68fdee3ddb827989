#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A program that takes Firecracker's place: its HTTP API, its vsock and its console, and no machine.

It refuses what the published API refuses: members that are unknown, missing or of the wrong type, calls
in the wrong state, files that are not there. Every call is noted in `calls`, beside its socket. Its guest
takes orders on port 1024, says what it was told on the console, and prints a line on port 1025.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

Members = dict[str, tuple[type, bool]]
"""From a member to its type, and whether it is required."""

MACHINE: Members = {
    "vcpu_count": (int, True), "mem_size_mib": (int, True), "smt": (bool, False),
    "track_dirty_pages": (bool, False), "huge_pages": (str, False),
}  # fmt: skip
BOOT: Members = {
    "kernel_image_path": (str, True), "initrd_path": (str, False), "boot_args": (str, False),
}  # fmt: skip
DRIVE: Members = {
    "drive_id": (str, True), "is_root_device": (bool, True), "path_on_host": (str, True),
    "is_read_only": (bool, True), "cache_type": (str, False), "io_engine": (str, False),
}  # fmt: skip
CARD: Members = {"iface_id": (str, True), "host_dev_name": (str, True), "guest_mac": (str, False)}
VSOCK: Members = {"guest_cid": (int, True), "uds_path": (str, True)}
ACTION: Members = {"action_type": (str, True)}
VM: Members = {"state": (str, True)}
CREATE: Members = {
    "snapshot_path": (str, True), "mem_file_path": (str, True), "snapshot_type": (str, False),
}  # fmt: skip
LOAD: Members = {
    "snapshot_path": (str, True), "mem_backend": (dict, True), "network_overrides": (list, False),
    "resume_vm": (bool, False), "track_dirty_pages": (bool, False),
}  # fmt: skip
BACKEND: Members = {"backend_type": (str, True), "backend_path": (str, True)}


class Refused(Exception):
    """What the monitor has against a call."""


def check(body: Any, members: Members) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused("the body is no object")
    for name in body.keys() - members.keys():
        raise Refused(f"unknown field `{name}`")
    for name, (kind, required) in members.items():
        if name not in body:
            if required:
                raise Refused(f"missing field `{name}`")
        elif not isinstance(body[name], kind) or (kind is int and isinstance(body[name], bool)):
            raise Refused(f"`{name}` has the wrong type")
    return body


def readable(path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error


class Monitor:
    """One machine: `Not started`, `Running` or `Paused`."""

    def __init__(self) -> None:
        self.state = "Not started"
        self.parts: dict[str, Any] = {}
        self.lines: list[socket.socket] = []
        self.lock = threading.Lock()

    def call(self, method: str, path: str, body: Any) -> None:
        routes = {
            ("PUT", r"/machine-config"): self.machine,
            ("PUT", r"/boot-source"): self.boot,
            ("PUT", r"/drives/(\w+)"): self.drive,
            ("PUT", r"/network-interfaces/(\w+)"): self.card,
            ("PUT", r"/vsock"): self.vsock,
            ("PUT", r"/entropy"): self.entropy,
            ("PUT", r"/actions"): self.action,
            ("PATCH", r"/vm"): self.vm,
            ("PUT", r"/snapshot/create"): self.create,
            ("PUT", r"/snapshot/load"): self.load,
        }
        for (wanted, pattern), act in routes.items():
            if wanted == method and (match := re.fullmatch(pattern, path)):
                with self.lock:
                    act(body, *match.groups())
                return
        raise Refused(f"Invalid request method and/or path: {method} {path}")

    def _before(self) -> None:
        if self.state != "Not started":
            raise Refused("The requested operation is not supported after starting the microVM.")

    def _after(self) -> None:
        if self.state == "Not started":
            raise Refused("The requested operation is not supported before starting the microVM.")

    def machine(self, body: Any) -> None:
        self._before()
        asked = check(body, MACHINE)
        vcpus = asked["vcpu_count"]
        if not 1 <= vcpus <= 32 or (vcpus > 1 and vcpus % 2):
            raise Refused("The vCPU number is invalid!")
        self.parts["machine"] = asked

    def boot(self, body: Any) -> None:
        self._before()
        asked = check(body, BOOT)
        readable(asked["kernel_image_path"])
        with open(asked["kernel_image_path"], "rb") as kernel:
            if kernel.read(4) != b"\x7fELF":
                raise Refused("Cannot load kernel due to invalid memory configuration or kernel image")
        if "initrd_path" in asked:
            readable(asked["initrd_path"])
        self.parts["boot"] = asked

    def drive(self, body: Any, name: str) -> None:
        self._before()
        asked = check(body, DRIVE)
        if asked["drive_id"] != name:
            raise Refused("The id from the path does not match the id from the body!")
        readable(asked["path_on_host"])
        self.parts.setdefault("drives", {})[name] = asked

    def card(self, body: Any, name: str) -> None:
        self._before()
        asked = check(body, CARD)
        if asked["iface_id"] != name:
            raise Refused("The id from the path does not match the id from the body!")
        self.parts.setdefault("cards", {})[name] = asked["host_dev_name"]
        self._attach(asked["host_dev_name"])

    def _attach(self, device: str) -> None:
        """As the real one: by name, which fails while another process has it open."""
        import fcntl
        import struct

        self.tap = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(self.tap, 0x400454CA, struct.pack("16sH22x", device.encode(), 0x5002))
        except OSError as error:
            raise Refused(f"Open tap device failed: {error.strerror}") from error

    def vsock(self, body: Any) -> None:
        self._before()
        asked = check(body, VSOCK)
        if asked["guest_cid"] < 3:
            raise Refused("guest_cid is below its minimum")
        self.parts["vsock"] = asked["uds_path"]
        self._listen()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(self.parts["vsock"])
        except OSError as error:
            raise Refused(f"Cannot create backend for vsock device: {error.strerror}") from error
        listener.listen(8)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def entropy(self, body: Any) -> None:
        self._before()
        check(body, {"rate_limiter": (dict, False)})

    def action(self, body: Any) -> None:
        if check(body, ACTION)["action_type"] != "InstanceStart":
            raise Refused("unknown variant")
        self._before()
        if "boot" not in self.parts:
            raise Refused("Cannot start microvm without kernel configuration.")
        self.state = "Running"

    def vm(self, body: Any) -> None:
        self._after()
        wanted = check(body, VM)["state"]
        if wanted not in ("Paused", "Resumed"):
            raise Refused("unknown variant")
        self.state = "Paused" if wanted == "Paused" else "Running"

    def create(self, body: Any) -> None:
        asked = check(body, CREATE)
        self._after()
        if self.state != "Paused":
            raise Refused("Create snapshot error: the microVM must be paused")
        Path(asked["mem_file_path"]).write_bytes(b"memory of a machine")
        Path(asked["snapshot_path"]).write_text(json.dumps(self.parts))
        for line in self.lines:  # the vsock is reset
            line.shutdown(socket.SHUT_RDWR)
        self.lines.clear()

    def load(self, body: Any) -> None:
        self._before()
        asked = check(body, LOAD)
        backend = check(asked["mem_backend"], BACKEND)
        if self.parts:
            raise Refused("Loading a microVM snapshot not allowed after configuring boot-specific resources.")
        readable(backend["backend_path"])
        readable(asked["snapshot_path"])
        self.parts = json.loads(Path(asked["snapshot_path"]).read_text())
        for drive in self.parts["drives"].values():
            readable(drive["path_on_host"])
        for override in asked.get("network_overrides", []):
            given = check(override, {"iface_id": (str, True), "host_dev_name": (str, True)})
            self.parts["cards"][given["iface_id"]] = given["host_dev_name"]
        for device in self.parts["cards"].values():
            self._attach(device)
        self._listen()
        self.state = "Running" if asked.get("resume_vm") else "Paused"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            line, _ = listener.accept()
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        words = line.makefile("rb")
        asked = words.readline().split()
        while self.state != "Running":  # a guest that stands still answers nothing
            threading.Event().wait(0.01)
        if asked[:1] != [b"CONNECT"] or asked[1:] not in ([b"1024"], [b"1025"]):
            line.close()
            return
        with self.lock:
            self.lines.append(line)
        line.sendall(b"OK 1073741824\n")
        if asked[1] == b"1025":
            line.sendall(b"printed by the entrypoint\n")
            return
        for order in words:
            body = json.loads(order)
            print("guest:", body["do"], flush=True)
            if body["do"] == "die":
                os._exit(1)
            line.sendall(json.dumps({"event": "done", "id": body.get("id", 0)}).encode() + b"\n")


class Handler(BaseHTTPRequestHandler):
    """The HTTP around it."""

    protocol_version = "HTTP/1.1"
    monitor = Monitor()

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "GET":
            self._send(200, {"id": "machine", "state": self.monitor.state})
            return
        body = json.loads(content)
        with open("calls", "a") as calls:
            calls.write(json.dumps([self.command, self.path, body]) + "\n")
        try:
            self.monitor.call(self.command, self.path, body)
        except Refused as error:
            self._send(400, {"fault_message": str(error)})
        else:
            self._send(204, None)

    do_GET = do_PUT = do_PATCH = _answer

    def _send(self, status: int, body: Any) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("Firecracker v1.13.1")
        sys.exit()
    place = sys.argv[sys.argv.index("--api-sock") + 1]
    ThreadingUnixStreamServer(place, Handler).serve_forever()
