# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which pages of a machine were changed, and the copy that is made of them."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import pytest

from casulo import linux
from casulo.model.errors import RuntimeFailure
from casulo.runtimes.microvm.capture import Mapping, Memory, find, runs
from casulo.runtimes.microvm.vmm import Process

PAGE = mmap.PAGESIZE
MAPS = """\
55d000000000-55d000100000 r-xp 00000000 fe:00 11 /usr/bin/monitor
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
7f1000000000-7f1010000000 rw-p 00000000 00:01 14003                      /memfd:casulo-machine (deleted)
"""


def test_memory_is_the_mapping_of_a_file_as_large() -> None:
    assert find(MAPS, 256 << 20) == Mapping(0x7F1000000000, 0x7F1010000000)
    with pytest.raises(RuntimeFailure, match="0 mappings"):
        find(MAPS, 512 << 20)


def test_changed_pages_are_those_that_are_no_more_the_files() -> None:
    untouched, of_file, changed, swapped = 0, 0xA1 << 56, 0x81 << 56, 0x40 << 56
    entries = [untouched, changed, changed, of_file, swapped, changed, untouched]
    assert runs(struct.pack(f"{len(entries)}Q", *entries)) == [(1, 3), (4, 6)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into another process's files")
def test_the_copy_is_what_the_process_sees(tmp_path: Path) -> None:
    size = 64 * PAGE
    (tmp_path / "base").write_bytes(b"\1" * 8 * PAGE)
    os.truncate(tmp_path / "base", size)
    with (tmp_path / "base").open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        mapped[3 * PAGE : 5 * PAGE] = b"\2" * 2 * PAGE
        mapped[60 * PAGE] = 3
        started = linux.start_time(os.getpid())
        assert started is not None
        memory = Memory(Process(os.getpid(), started), size, tmp_path)
        seen = bytes(mapped)
        mapped[0] = 9  # afterwards
        memory.write(tmp_path / "copy")
        memory.close()
    assert (tmp_path / "copy").read_bytes() == seen
    assert os.stat(tmp_path / "copy").st_blocks * 512 < 32 * PAGE
