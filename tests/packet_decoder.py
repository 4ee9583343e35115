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


KEYS = [splitmix64(0x70726573756D6670 + i) & 0xFFFFFFFF for i in range(2048)]


def words_of(data: bytes, dtype: str) -> list[int]:
    return [x for (x,) in struct.iter_unpack("<H" if dtype in ("bf16", "f16") else "<I", data)]


def fingerprint(data: bytes, dtype: str) -> int:
    words = words_of(data, dtype)
    width = 2 if dtype == "f64" else 1
    total = 0
    for index, begin in enumerate(range(0, len(words), 1024 * width)):
        block = words[begin : begin + 1024 * width]
        elements = len(block) // width
        padded = block + [0] * (len(block) % 2)
        keyed = [(word + key) & 0xFFFFFFFF for word, key in zip(padded, KEYS, strict=False)]
        products = sum(a * b for a, b in zip(keyed[::2], keyed[1::2], strict=True))
        total += mix64((products + mix64(((index << 11) + elements) & M64)) & M64)
    return total & M64


def sketch_seed(step: int, parameter: str) -> int:
    return splitmix64(splitmix64(0x70726573756D736B ^ step) ^ name_hash(parameter))


def sketch_place(seed: int, i: int, size: int) -> tuple[int, int]:
    """Bucket and sign of element i."""
    bucket = (i + splitmix64(seed ^ (2 * (i // size) + 1))) % size
    negated = splitmix64((seed + i // 64) & M64) >> (i % 64) & 1
    return bucket, -1 if negated else 1


def values_of(data: bytes, dtype: str) -> list[float]:
    if dtype == "bf16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    code = {"f32": "<f", "bf16": "<f", "f64": "<d", "f16": "<e"}[dtype]
    return [x for (x,) in struct.iter_unpack(code, data)]


def sum_squares(values: list[float]) -> float:
    sums = [0.0] * 16
    for i, x in enumerate(values):
        sums[i % 16] += x * x
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def padding_begins(row: list[int], columns: list[int]) -> int:
    """How many of the columns are left without a run of equal elements at the end."""
    run = 1
    while run < len(columns) and row[columns[-run - 1]] == row[columns[-1]]:
        run += 1
    return len(columns) if run == 1 else max(len(columns) - run, 1)


def row_hash(row: list[int], mask: list[int] | None) -> int:
    stride = max(1, -(-len(row) // 4096))
    columns = list(range(0, len(row), stride))
    if mask is not None:
        kept = [c for c in columns if mask[c]]
    else:
        kept = columns[: padding_begins(row, columns)] if columns else []
    total = sum(mix64(row[c] ^ splitmix64(c)) for c in kept) & M64
    return mix64(total ^ mix64(len(kept)))


def rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & M64


def siphash(key: tuple[int, int], data: bytes) -> int:
    """SipHash-2-4 as its paper defines it."""
    text = b"somepseudorandomlygeneratedbytes"
    v = [int.from_bytes(text[i : i + 8], "big") ^ key[i // 8 % 2] for i in range(0, 32, 8)]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, turn in ((0, 1, 13), (2, 3, 16), (2, 1, 17), (0, 3, 21)):
                v[a] = (v[a] + v[b]) & M64
                v[b] = rotated(v[b], turn) ^ v[a]
                if turn in (13, 17):
                    v[a] = rotated(v[a], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def checksum(body: bytes) -> int:
    library = ctypes.util.find_library("xxhash")
    assert library is not None, "install libxxhash-dev"
    xxh3 = ctypes.CDLL(library).XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return int(xxh3(body, len(body))) & 0xFFFFFFFF


@dataclass
class Layer:
    """What a reduction made of one group."""

    elements: int
    part: int
    fingerprint: int
    squares: float
    shard: int
    kept: int
    own: list[float]
    reduced: list[float]


@dataclass(frozen=True)
class Sums:
    sum_squares: float
    max_abs: float
    nonfinite: int
    fingerprint: int

    @classmethod
    def parse(cls, data: bytes) -> Sums:
        return cls(*struct.unpack_from("<ddQQ", data))


@dataclass
class Decoded:
    kind: str
    header: dict[str, int]
    sections: dict[int, bytes] = field(default_factory=dict)

    def total(self) -> Sums:
        return Sums.parse(self.sections[2])

    def groups(self) -> dict[int, Sums]:
        rows = struct.iter_unpack("<QddQQ", self.sections[3])
        return {row[0]: Sums(*row[1:]) for row in rows}

    def sketch(self) -> list[float]:
        return [x for (x,) in struct.iter_unpack("<f", self.sections.get(4, b""))]

    def layers(self) -> dict[int, Layer]:
        """By group."""
        rows = struct.iter_unpack("<4QdII256f256f", self.sections.get(14, b""))
        return {row[0]: Layer(*row[1:7], list(row[7:263]), list(row[263:])) for row in rows}


HEADER = struct.Struct("<IHHIIQIIIIIIQ")
HEADER_FIELDS = [
    *("magic", "version", "kind", "length", "checksum"),
    *("run", "segment", "module", "replica", "shard", "rank", "replicas", "step"),
]
KINDS = {1: "hello", 2: "step", 3: "note", 4: "moment", 5: "beat"}


def decode(packet: bytes) -> Decoded:
    """Raises ValueError for what docs/packet_format.md tells a decoder to refuse."""
    if not HEADER.size <= len(packet) <= 16 << 20:
        raise ValueError("size")
    header = dict(zip(HEADER_FIELDS, HEADER.unpack_from(packet), strict=True))
    if header["magic"] != 0x4D535250 or header["version"] != 2 or header["kind"] not in KINDS:
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
