# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Getting the plain ELF program out of a compressed x86 kernel.

The boot header says where the compressed part is; its first bytes say how it was compressed.
"""

from __future__ import annotations

import lzma
import struct
import zlib

from casulo.model.errors import Code, Unsupported

_SECTOR = 512
_SETUP_SECTORS = 0x1F1
_SIGNATURE = (0x202, b"HdrS")
_PAYLOAD = 0x248  # offset and length, from the end of the set-up sectors
_XZ = b"\xfd7zXZ\0"
_GZIP = b"\x1f\x8b"
_LZ4 = b"\x02\x21\x4c\x18"
_SHORTEST_MATCH = 4


def extract(image: bytes) -> bytes:
    """The program; Unsupported when the image is not understood."""
    signed = image[_SIGNATURE[0] : _SIGNATURE[0] + 4]
    if signed != _SIGNATURE[1]:
        raise _unsupported("it has no boot header")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    start = ((image[_SETUP_SECTORS] or 4) + 1) * _SECTOR + offset
    program = _expanded(image[start : start + length])
    if not program.startswith(b"\x7fELF"):
        raise _unsupported("there is no program in it")
    return program


def _expanded(data: bytes) -> bytes:
    try:
        if data.startswith(_LZ4):
            return _lz4(data)
        if data.startswith(_XZ):
            return lzma.LZMADecompressor().decompress(data)
        if data.startswith(_GZIP):
            return zlib.decompressobj(31).decompress(data)
    except (lzma.LZMAError, zlib.error, IndexError, struct.error) as error:
        raise _unsupported(f"its compressed part is damaged: {error}") from error
    raise _unsupported(f"its compression is not known (begins with {data[:4].hex()})")


def _lz4(data: bytes) -> bytes:
    """LZ4's older frame: a magic number, then blocks that each begin with their length."""
    result = bytearray()
    place = len(_LZ4)
    while place + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, place)
        if size == 0 or size > len(data) - place - 4:  # the length of the whole, kept by the kernel
            break
        result += _lz4_block(data[place + 4 : place + 4 + size])
        place += 4 + size
    return bytes(result)


def _lz4_block(data: bytes) -> bytearray:
    result = bytearray()
    place = 0
    while True:
        token = data[place]
        literals, place = _length(data, place + 1, token >> 4)
        result += data[place : place + literals]
        place += literals
        if place >= len(data):
            return result
        distance = data[place] | data[place + 1] << 8
        extra, place = _length(data, place + 2, token & 15)
        _repeat(result, distance, extra + _SHORTEST_MATCH)


def _length(data: bytes, place: int, value: int) -> tuple[int, int]:
    """A length that a half byte began, and where what follows it is."""
    if value == 15:
        while True:
            byte = data[place]
            place += 1
            value += byte
            if byte != 255:
                break
    return value, place


def _repeat(result: bytearray, distance: int, length: int) -> None:
    start = len(result) - distance
    if distance >= length:
        result += result[start : start + length]
        return
    pattern = bytes(result[start:])
    result += (pattern * (length // distance + 1))[:length]


def _unsupported(why: str) -> Unsupported:
    return Unsupported(f"the kernel cannot be uncompressed: {why}", code=Code.HOST_UNSUPPORTED)
