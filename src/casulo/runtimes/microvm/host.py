# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What this machine must have for virtual machines, and how they are accelerated."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import subprocess
import time

from casulo.images import daemon
from casulo.model.errors import Code, Unsupported
from casulo.network.filter import ANY_SANDBOX
from casulo.runtimes.local.host import is_privileged
from casulo.runtimes.microvm.kernel import Kernel
from casulo.runtimes.microvm.qemu import PROGRAM

_KVM = "/dev/kvm"
_KVM_CREATE_VM = 0xAE01
_PROBE_SECONDS = 10.0
_SIGN_OF_LIFE = b"Linux version"


def require(monitor: str = "qemu") -> None:
    """Unsupported says what is missing and how to get it."""
    if not is_privileged():
        raise _lacking("virtual machines need a server that is run by root", "run `osb server` as root")
    if daemon.host_architecture() != "amd64":
        raise _lacking("virtual machines are made on amd64 machines only", "use the local runtime")
    packages = {PROGRAM: "qemu-system-x86", "mke2fs": "e2fsprogs", "nft": "nftables"}
    if monitor != "qemu":
        del packages[PROGRAM]
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise _lacking(f"{program} is not installed", f"apt-get install {package}")


def _lacking(what: str, remedy: str) -> Unsupported:
    return Unsupported(what, code=Code.HOST_UNSUPPORTED, hint=remedy)


def interface_prefix(instance: str) -> str:
    """Start of the names of this server's tap devices."""
    return f"{ANY_SANDBOX}{instance}m"


def qemu_version() -> str:
    """As the program says it, in full: frozen machines depend on it."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"version (.+)", said.stdout)
    if found is None:
        raise _lacking(f"{PROGRAM} does not say its version", "apt-get install --reinstall qemu-system-x86")
    return found[1].strip()


def accelerator(wanted: str, kernel: Kernel) -> tuple[str, str]:
    """(`kvm` or `tcg`, why not kvm). Unsupported when KVM is wanted and does not work."""
    if wanted == "tcg":
        return "tcg", "the configuration says so"
    reason = why_no_kvm(kernel)
    if not reason:
        return "kvm", ""
    if wanted == "kvm":
        raise _lacking(f"KVM does not work here: {reason}", 'set [microvm] accelerator = "auto"')
    return "tcg", reason


def why_no_kvm(kernel: Kernel) -> str:
    """Empty when a machine really boots under KVM."""
    return why_no_kvm_device() or ("" if _boots(kernel) else "a probe did not boot")


def why_no_kvm_device() -> str:
    """Empty when KVM makes a machine, which may yet not run."""
    try:
        descriptor = os.open(_KVM, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{_KVM}: {error.strerror}"
    try:
        os.close(fcntl.ioctl(descriptor, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"{_KVM} makes no machine: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _boots(kernel: Kernel) -> bool:
    """Whether the kernel says something, which is more than making a machine proves."""
    command = [
        *(PROGRAM, "-M", "microvm", "-accel", "kvm", "-cpu", "host", "-m", "128", "-nodefaults"),
        *("-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"),
        *("-kernel", str(kernel.compressed), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"),
    ]
    return speaks(command)


def speaks(command: list[str]) -> bool:
    """Whether the kernel of a machine that is started in this way shows a sign of life."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        return _says(process.stdout.fileno())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _says(output: int) -> bool:
    seen = b""
    deadline = time.monotonic() + _PROBE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([output], [], [], left)
        chunk = os.read(output, 65536) if ready else b""
        if not chunk:
            return False
        seen += chunk
        if _SIGN_OF_LIFE in seen:
            return True
    return False
