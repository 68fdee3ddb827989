# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The command line of a machine, which decides what the guest can reach."""

from __future__ import annotations

from pathlib import Path

from casulo.runtimes.microvm.qemu import Qemu
from casulo.runtimes.microvm.vmm import Hardware, Plan, Sockets

SOCKETS = {"control": 10, "link": 11, "output": 12, "console": 13}
DISKS = {"image": 20, "own": 21, "own-frozen": 22}


def _plan(**changes: object) -> Plan:
    given: dict = {
        "hardware": Hardware(1, 256 << 20, 1 << 30),
        "kernel": Path("/store/vmlinuz"),
        "initramfs": Path("/store/initramfs"),
        "image_disk": Path("/store/image"),
        "own_disk": Path("/data/disk"),
        "sockets": Sockets(Path("/run/x")),
        "log": Path("/data/log"),
        "tap": 30,
        "uid": 1_000_200_001,
    }
    return Plan(**(given | changes))


def _line(**changes: object) -> str:
    return " ".join(Qemu("tcg", Path("/nowhere"), "7.2").arguments(_plan(**changes), SOCKETS, DISKS))


def test_the_monitor_gives_up_what_it_does_not_need() -> None:
    line = _line()
    assert "-chroot /nowhere" in line and "-runas 1000200001:1000200001" in line
    assert "-sandbox on,obsolete=deny,spawn=deny,resourcecontrol=deny" in line
    assert "-nodefaults -no-user-config" in line
    assert "/data/disk" not in line and "/run/x" not in line and "/store/image" not in line


def test_the_image_disk_is_read_only() -> None:
    assert "file=/dev/fdset/1,readonly=on" in _line()


def test_memory_is_shared_only_with_whoever_builds() -> None:
    assert "mem-path=/proc/self/fd/40,share=on" in _line(memory=40)
    assert "mem-path=/proc/self/fd/40,share=off" in _line(memory=40, private_memory=True)
    assert "memory-backend-ram,id=mem" in _line()


def test_a_restored_machine_neither_boots_nor_runs() -> None:
    booted, restored = _line(), _line(incoming=50)
    assert "-initrd /store/initramfs" in booted and "tsc_early_khz=" in booted and "-incoming" not in booted
    assert "-S -incoming defer" in restored and "-initrd" not in restored
    assert "-kernel /store/vmlinuz.head" in restored
