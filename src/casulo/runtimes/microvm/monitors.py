# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which virtual machine monitor a server uses."""

from __future__ import annotations

from pathlib import Path

from casulo.runtimes.microvm import fchost, host
from casulo.runtimes.microvm.kernel import Kernel
from casulo.runtimes.microvm.qemu import Qemu
from casulo.runtimes.microvm.settings import MicrovmSettings
from casulo.runtimes.microvm.vmm import Vmm


def chosen(settings: MicrovmSettings, kernel: Kernel, nowhere: Path) -> tuple[Vmm, str]:
    """The driver, and why it does not use KVM. Unsupported says what is missing for it."""
    if settings.monitor == "firecracker":
        return fchost.driver(kernel), ""
    accelerator, why_no_kvm = host.accelerator(settings.accelerator, kernel)
    return Qemu(accelerator, nowhere, host.qemu_version()), why_no_kvm
