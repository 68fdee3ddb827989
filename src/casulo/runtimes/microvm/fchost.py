# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What this machine must have for Firecracker. That it is there is not enough: a probe has to boot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from casulo.model.errors import Code, Unsupported
from casulo.runtimes.microvm import host
from casulo.runtimes.microvm.firecracker import JAILER, PROGRAM, Firecracker
from casulo.runtimes.microvm.kernel import Kernel

OLDEST = (1, 12)
"""The first that restores a machine with another network device."""

_DRIVER = "vmw_vsock_virtio_transport"


def driver(kernel: Kernel) -> Firecracker:
    """The driver; Unsupported says what is missing and how to get it."""
    reason = why_not(kernel)
    if reason is not None:
        raise reason
    jailer = shutil.which(JAILER)
    return Firecracker(_program(), version(), Path(jailer).resolve() if jailer else None)


def why_not(kernel: Kernel) -> Unsupported | None:
    """None when a machine really boots."""
    if shutil.which(PROGRAM) is None:
        return _lacking(
            "firecracker is not installed",
            "install `firecracker` and `jailer` of a release where the server finds them",
        )
    found = version()
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        return _lacking(
            f"Firecracker {found} cannot restore a machine on another network device",
            f"install {OLDEST[0]}.{OLDEST[1]} or later",
        )
    if not kernel.has(_DRIVER):
        return _lacking(
            "the kernel for virtual machines was unpacked without vsock", "run `osb microvm setup` again"
        )
    reason = host.why_no_kvm_device() or ("" if _boots(kernel) else "a probe did not boot")
    return _lacking(f"Firecracker needs KVM: {reason}", "use QEMU, which can emulate") if reason else None


def version() -> str:
    """As the program says it."""
    said = subprocess.run([_program(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"v(\d+\.\d+\.\d+\S*)", said.stdout)
    if match is None:
        raise _lacking(f"{PROGRAM} does not say its version", "install it again")
    return match[1]


def _program() -> Path:
    """The file itself: the jailer names a folder after it."""
    return Path(shutil.which(PROGRAM) or PROGRAM).resolve()


def _boots(kernel: Kernel) -> bool:
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "probe.json")
        config.write_text(json.dumps(probe(kernel)))
        command = [str(_program()), "--no-api", "--id", "probe", "--config-file", str(config)]
        return host.speaks(command)


def probe(kernel: Kernel) -> dict[str, object]:
    """A machine with nothing but a kernel that says something."""
    return {
        "boot-source": {
            "kernel_image_path": str(kernel.uncompressed),
            "boot_args": "console=ttyS0 earlyprintk=ttyS0 panic=-1 reboot=k",
        },
        "drives": [],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 128},
    }


def _lacking(what: str, remedy: str) -> Unsupported:
    return Unsupported(what, code=Code.HOST_UNSUPPORTED, hint=remedy)
