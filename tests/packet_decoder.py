# SPDX-License-Identifier: Apache-2.0
"""The packet format in plain Python, written from docs/ alone.

It shares no line with the library, so both can be held against the documents and each other.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from dataclasses import dataclass, field

M64 = (1 << 64) - 1


def mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def splitmix64(x: int) -> int:
    return mix64((x + 0x9E3779B97F4A7C15) & M64)


def name_hash(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    return mix64(h)


def checksum(body: bytes) -> int:
    library = ctypes.util.find_library("xxhash")
    assert library is not None, "install libxxhash-dev"
    xxh3 = ctypes.CDLL(library).XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return int(xxh3(body, len(body))) & 0xFFFFFFFF


@dataclass
class Decoded:
    kind: str
    header: dict[str, int]
    sections: dict[int, bytes] = field(default_factory=dict)


HEADER = struct.Struct("<IHHIIQIIIIIIQ")
HEADER_FIELDS = [
    *("magic", "version", "kind", "length", "checksum"),
    *("run", "segment", "model_index", "replica", "dp_group", "rank", "replicas", "step"),
]
KINDS = {1: "hello", 2: "step", 3: "note", 4: "snapshot", 5: "beat"}


def decode(packet: bytes) -> Decoded:
    """Raises ValueError for what docs/packet_format.md tells a decoder to refuse."""
    if not HEADER.size <= len(packet) <= 16 << 20:
        raise ValueError("size")
    header = dict(zip(HEADER_FIELDS, HEADER.unpack_from(packet), strict=True))
    if header["magic"] != 0x4D535250 or header["version"] != 3 or header["kind"] not in KINDS:
        raise ValueError("magic, version or kind")
    if header["length"] != len(packet) or header["checksum"] != checksum(packet[16:]):
        raise ValueError("length or checksum")
    if not 1 <= header["replicas"] <= 65536 or header["replica"] >= header["replicas"]:
        raise ValueError("replica")
    decoded = Decoded(KINDS[header["kind"]], header)
    at = HEADER.size
    while at < len(packet):
        if at + 8 > len(packet):
            raise ValueError("section header")
        kind, _, length = struct.unpack_from("<HHI", packet, at)
        if at + 8 + length > len(packet):
            raise ValueError("section length")
        decoded.sections[kind] = packet[at + 8 : at + 8 + length]
        at += 8 + length
    return decoded
