# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""How large a machine is, from what its sandbox asks for."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from casulo.model.errors import Code, InvalidRequest
from casulo.model.sandbox import Resources, Spec
from casulo.runtimes.microvm.vmm import Hardware

_MIB = 1 << 20
_MOST_VCPUS = 16
_LEAST_MEMORY = 128 * _MIB
_LEAST_DISK = 16 * _MIB


def asked(spec: Spec, machine: Hardware) -> Resources:
    """What a restored machine gets: what was asked for, or else what it is."""
    if spec.resource_limits:
        return spec.resources
    return replace(spec.resources, cpu_millis=machine.vcpus * 1000, memory_bytes=machine.memory_bytes)


def hardware(resources: Resources, default_disk: int) -> Hardware:
    """What the machine has; InvalidRequest where that is too little for one."""
    memory, disk = resources.memory_bytes // _MIB * _MIB, resources.disk_bytes or default_disk
    vcpus = -(-resources.cpu_millis // 1000)
    if memory < _LEAST_MEMORY:
        raise _outside("memory", f"{memory >> 20}Mi is too little; ask for {_LEAST_MEMORY >> 20}Mi or more")
    if disk < _LEAST_DISK:
        raise _outside("disk", f"{disk} bytes are too little; ask for {_LEAST_DISK >> 20}Mi or more")
    if vcpus > _MOST_VCPUS:
        raise _outside("cpu", f"{vcpus} processors are too many; ask for {_MOST_VCPUS} or fewer")
    return Hardware(vcpus, memory, disk // 4096 * 4096)


def require_room(machine: Hardware, data: Path) -> None:
    """InvalidRequest where this host could never have it; what it has left now is another matter."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if machine.memory_bytes > memory:
        raise _outside("memory", f"{machine.memory_bytes >> 20}Mi is more than this host's {memory >> 20}Mi")
    disk = shutil.disk_usage(data).total
    if machine.disk_bytes > disk:
        raise _outside("disk", f"{machine.disk_bytes >> 20}Mi is more than this host's {disk >> 20}Mi")


def _outside(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"resourceLimits: {name} of a virtual machine: {why}", code=Code.INVALID_PARAMETER)
