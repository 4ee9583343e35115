# SPDX-License-Identifier: Apache-2.0
"""The formats as docs/ describes them, held against what the library writes.

Every vector, table and query is parsed from the Markdown. The packet decoder, the fingerprint, the
sketch, the row hash and the salt below are written from docs/ alone, in plain Python.
"""

from __future__ import annotations

import array
import ctypes
import ctypes.util
import json
import math
import random
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presum._core import (
    Aggregator,
    Observer,
    canonical_name,
    fingerprint_kinds,
    hash_rows,
    stamp,
)

DOCS = Path(__file__).parents[1] / "docs"
PACKET_FORMAT = (DOCS / "packet_format.md").read_text(encoding="utf-8")
RUNLOG_FORMAT = (DOCS / "runlog_format.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")
KIND_TABLE = DOCS.parent / "src" / "base" / "fingerprint_kinds.cc"

DTYPES = {"f32": 0, "f64": 1, "bf16": 2, "f16": 3}


# ---- reading Markdown


def section(text: str, heading: str) -> str:
    """From a heading to the next one of its level or above; code blocks hold no headings."""
    level = heading.split(" ")[0]
    inside, fenced = False, False
    lines = []
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#{1,6} ", line):
            if inside and len(line.split(" ")[0]) <= len(level):
                break
            inside = inside or line == heading
        if inside:
            lines.append(line)
    assert lines, f"no heading {heading!r}"
    return "\n".join(lines)


def tables(text: str) -> list[list[list[str]]]:
    """Rows of cells without backticks and without the header, table by table."""
    found: list[list[list[str]]] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def rows_of(text: str, heading: str) -> list[list[str]]:
    (only,) = tables(section(text, heading))
    return only


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# ---- the packet format, in plain Python

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

    def states(self) -> list[tuple[int, int, int]]:
        return list(struct.iter_unpack("<QIQ", self.sections.get(8, b"")))

    def samples(self) -> tuple[int, int, list[int]]:
        rows, thinned = struct.unpack_from("<QI", self.sections[9])
        return rows, thinned, [x for (x,) in struct.iter_unpack("<Q", self.sections[9][12:])]


HEADER = struct.Struct("<IHHIIQIIIIIIQ")
HEADER_FIELDS = [
    *("magic", "version", "kind", "length", "checksum"),
    *("run", "segment", "module", "replica", "shard", "world_rank", "replicas", "step"),
]
KINDS = {1: "hello", 2: "step", 3: "note"}


def decode(packet: bytes) -> Decoded:
    """Raises ValueError for what docs/packet_format.md tells a decoder to refuse."""
    if not HEADER.size <= len(packet) <= 16 << 20:
        raise ValueError("size")
    header = dict(zip(HEADER_FIELDS, HEADER.unpack_from(packet), strict=True))
    if header["magic"] != 0x4D535250 or header["version"] != 1 or header["kind"] not in KINDS:
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


def reseal(packet: bytes) -> bytes:
    """The packet with its length and checksum renewed."""
    length = struct.pack("<I", len(packet))
    return packet[:8] + length + struct.pack("<I", checksum(packet[16:])) + packet[16:]


# ---- the library


def make_observer(
    parameters: list[tuple[str, int, str]],
    *,
    buffers: tuple[tuple[str, int, str], ...] = (),
    replica: int = 1,
    replicas: int = 2,
    sketch_size: int = 0,
) -> Observer:
    return Observer(
        module=0,
        replica=replica,
        shard=0,
        world_rank=10 + replica,
        replicas=replicas,
        sketch_size=sketch_size,
        host=f"node-{'ab'[replica % 2]}",
        facts=[("torch", "2.13.0")],
        parameters=parameters,
        buffers=list(buffers),
    )


def report(observer: Observer, parameter: int, data: bytes, dtype: str, *, reduced: bool) -> None:
    buffer = array.array("B", data)
    count = len(data) // {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}[dtype]
    take = observer.reduced_gradient if reduced else observer.gradient
    take(parameter, buffer.buffer_info()[0], count, DTYPES[dtype])


def report_state(observer: Observer, of: int, index: int, data: bytes, width: int) -> None:
    buffer = array.array("B", data)
    observer.state(of, index, buffer.buffer_info()[0], len(data) // width, width)


def end_step(observer: Observer, *, scale: float = 1.0) -> bytes:
    return observer.end_step(3, 1, 0, scale, 0)


# ---- docs/packet_format.md


def elements_of(text: str, dtype: str) -> bytes:
    if text == "none":
        return b""
    if text.startswith("bits "):
        return b"".join(struct.pack("<H", int(word, 16)) for word in text.split()[1:])
    if found := re.fullmatch(r"i . 0\.5 for i = 0 \S (\d+)", text):
        return b"".join(struct.pack("<f", i * 0.5) for i in range(int(found[1]) + 1))
    code = {"f32": "f", "f64": "d"}[dtype]
    return b"".join(struct.pack("<" + code, float(x)) for x in text.split(", "))


def number(text: str) -> int:
    return int(text.replace("_", ""), 0)


FINGERPRINT_VECTORS = rows_of(PACKET_FORMAT, "### Fingerprint vectors")


@pytest.mark.parametrize(("dtype", "elements", "expected"), FINGERPRINT_VECTORS)
def test_fingerprint_vectors_hold_here_and_in_the_library(
    dtype: str, elements: str, expected: str
) -> None:
    data = elements_of(elements, dtype)
    assert fingerprint(data, dtype) == number(expected)
    observer = make_observer([("w", 1, "")])
    observer.begin_step(0)
    report(observer, 0, data, dtype, reduced=False)
    total = decode(end_step(observer)).total()
    assert total.fingerprint == mix64(number(expected) ^ name_hash("w"))


def test_mix64_and_splitmix64_vectors() -> None:
    rows = rows_of(PACKET_FORMAT, "### Mixing")
    assert len(rows) >= 3
    for x, mixed, split in rows:
        assert mix64(number(x)) == number(mixed)
        assert splitmix64(number(x)) == number(split)


def test_fingerprint_keys() -> None:
    rows = rows_of(PACKET_FORMAT, "### Keys")
    assert len(rows) >= 3
    for index, key in rows:
        assert KEYS[int(index)] == number(key)


def test_name_hash_vectors_hold_here_and_in_the_library() -> None:
    rows = rows_of(PACKET_FORMAT, "### Name hash vectors")
    assert len(rows) >= 3
    for name, expected in rows:
        assert name_hash(name) == number(expected)
        observer = make_observer([("w", 1, name)])
        assert decode(end_step(observer)).groups().keys() == {number(expected)}


def test_names_and_default_groups() -> None:
    rows = rows_of(PACKET_FORMAT, "### Names and groups")
    assert len(rows) >= 4
    for name, canonical, group in rows:
        assert canonical_name(name) == canonical
        names = decode(make_observer([(name, 9, "")]).hello()).sections[18]
        identity, elements, length = struct.unpack_from("<QQH", names)
        assert (identity, elements) == (name_hash(group), 9)
        assert names[18 : 18 + length].decode() == group


def test_sketch_vectors_hold_here_and_in_the_library() -> None:
    rows = rows_of(PACKET_FORMAT, "### Sketch vectors")
    assert len(rows) >= 4
    for step, parameter, size, seed, i, bucket, sign in rows:
        assert sketch_seed(int(step), parameter) == number(seed)
        expected = (int(bucket), 1 if sign == "+" else -1)
        assert sketch_place(number(seed), int(i), int(size)) == expected
        observer = make_observer([(parameter, 1, "")], sketch_size=int(size))
        observer.begin_step(int(step))
        data = struct.pack("<f", 0.0) * int(i) + struct.pack("<f", 3.0)
        report(observer, 0, data, "f32", reduced=False)
        sketch = decode(end_step(observer)).sketch()
        assert {b: x for b, x in enumerate(sketch) if x} == {expected[0]: expected[1] * 3.0}


def row_of(text: str) -> list[int]:
    if found := re.fullmatch(r"c for c = 0 \S (\d+)", text):
        return list(range(int(found[1]) + 1))
    return [number(word) for word in text.split()]


def test_row_hash_vectors_hold_here_and_in_the_library() -> None:
    rows = rows_of(PACKET_FORMAT, "### Row hash vectors")
    assert {row[0] for row in rows} == {"u8", "u16", "u32", "u64"}
    for kind, text, mask_text, expected in rows:
        row, mask = row_of(text), row_of(mask_text) or None
        assert row_hash(row, mask) == number(expected), text
        assert library_row_hashes([row], kind, [mask] if mask else None) == [number(expected)], text


ARRAY_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def library_row_hashes(
    rows: list[list[int]], kind: str, masks: list[list[int]] | None, mask_kind: str = "u8"
) -> list[int]:
    data = array.array(ARRAY_CODES[kind], [x for row in rows for x in row])
    mask = array.array(ARRAY_CODES[mask_kind], [x for row in masks or [] for x in row])
    place = mask.buffer_info()[0] if masks else 0
    return hash_rows(
        data.buffer_info()[0], len(rows), len(rows[0]), data.itemsize, place, mask.itemsize
    )


@pytest.mark.parametrize("kind", ARRAY_CODES)
@pytest.mark.parametrize("columns", [1, 2, 3, 17, 4095, 4096, 4097, 9000])
def test_row_hashes_are_those_of_the_definition(kind: str, columns: int) -> None:
    source = random.Random(columns)
    bits = 8 * array.array(ARRAY_CODES[kind]).itemsize
    rows = [[source.getrandbits(bits) for _ in range(columns)] for _ in range(3)]
    for padding, row in enumerate(rows):  # none, one element, most of the row
        for column in range(columns - (0, 1, columns // 2)[padding], columns):
            row[column] = 1
    masks = [[source.randrange(2) * 255 for _ in row] for row in rows]
    assert library_row_hashes(rows, kind, None) == [row_hash(row, None) for row in rows]
    expected = [row_hash(row, mask) for row, mask in zip(rows, masks, strict=True)]
    for mask_kind in ARRAY_CODES:
        assert library_row_hashes(rows, kind, masks, mask_kind) == expected


def test_kinds_of_fingerprints_are_those_of_the_library() -> None:
    """Numbers and names by the extension; the rest is only in the source."""
    rows = rows_of(PACKET_FORMAT, "### Kinds of fingerprints")
    assert {name: int(kind) for kind, name, *_ in rows} == fingerprint_kinds()
    assert [int(kind) for kind, *_ in rows] == sorted(fingerprint_kinds().values())
    source = " ".join(KIND_TABLE.read_text(encoding="utf-8").split())
    entry = r'FingerprintInfo\{FingerprintKind::k\w+, "(\w+)", k(\w+), (\w+), "([\w-]*)"\}'
    words = {"Match": "must match", "Differ": "must differ", "Noise": "noise"}
    expected = {
        name: (words[expectation], real == "true", check)
        for name, expectation, real, check in re.findall(entry, source)
    }
    documented = {
        name: (expectation, value == "f64", check) for _, name, value, expectation, check, _ in rows
    }
    assert documented == expected
    assert {value for _, _, value, *_ in rows} == {"hash", "count", "f64"}
    assert all(meaning for *_, meaning in rows)


def test_states_are_combined_as_documented() -> None:
    observer = make_observer(
        [("module.layer.0.w", 2, ""), ("layer.0.b", 2, ""), ("head.w", 2, "")],
        buffers=(("layer.0.mean", 2, ""), ("frozen", 2, "mine")),
    )
    data = {
        (1, 0): (struct.pack("<2f", 1, math.nan), "f32"),
        (1, 1): (struct.pack("<2d", 1, math.inf), "f64"),
        (1, 2): (b"\x01\x02\x03\x04", "bf16"),
        (2, 0): (struct.pack("<2f", 3, 4), "f32"),
        (2, 1): (b"", "f32"),
    }
    names = {1: ["layer.0.w", "layer.0.b", "head.w"], 2: ["layer.0.mean", "frozen"]}
    groups = {1: ["layer.0", "layer.0", "head.w"], 2: ["layer.0", "mine"]}
    expected: dict[tuple[int, int], int] = {}
    observer.begin_states()
    for (of, index), (bits, dtype) in data.items():
        report_state(observer, of, index, bits, {"f32": 4, "f64": 8, "bf16": 2}[dtype])
        key = name_hash(groups[of][index]), of
        part = mix64(fingerprint(bits, dtype) ^ name_hash(names[of][index]))
        expected[key] = (expected.get(key, 0) + part) & M64
    observer.begin_step(0)
    final = decode(observer.note(True, 0, 0, "", 7))
    step = decode(end_step(observer))
    for decoded in (final, step):
        assert {(group, of): value for group, of, value in decoded.states()} == expected
    assert struct.unpack("<Q", final.sections[20]) == (7,)
    assert 20 not in decode(observer.note(False, 0, 0, "", 7)).sections


def test_samples_are_thinned_out_as_documented() -> None:
    text = " ".join(section(PACKET_FORMAT, "### 9 samples").split())
    (most,) = map(int, re.findall(r"at most (\d+) hashes", text))
    source = random.Random(5)
    for count in (1, most, most + 1, 5000):
        hashes = [source.getrandbits(64) for _ in range(count)]
        observer = make_observer([("p", 1, "")])
        observer.begin_step(0)
        observer.samples(hashes)
        observer.indices(list(range(count)))
        decoded = decode(end_step(observer))
        rows, thinned, kept = decoded.samples()
        assert (rows, thinned > 0) == (count, count > most)
        assert kept == [x for x in hashes if x % (1 << thinned) == 0]
        once_less = [x for x in hashes if x % (1 << max(thinned - 1, 0)) == 0]
        assert len(kept) <= most and (thinned == 0 or len(once_less) > most)
        indices = [x for (x,) in struct.iter_unpack("<Q", decoded.sections[10])]
        assert indices == list(range(min(count, most)))


def test_product_vectors_hold_in_the_library() -> None:
    rows = rows_of(PACKET_FORMAT, "### Product vectors")
    assert {kind for kind, *_ in rows} == {"11", "12"}
    for kind, scale, before, body in rows:
        values = [float(x) for x in before.split(", ")]
        expected = struct.pack(f"<{len(values)}d", *(x / float(scale) ** 2 for x in values))
        assert bytes.fromhex(body.strip("`")) == expected
        observer = make_observer([], replica=0, replicas=2)
        observer.begin_step(0)
        if kind == "11":
            observer.mean_dot(*values)
        else:
            observer.gram(values)
        assert decode(end_step(observer, scale=float(scale))).sections[int(kind)] == expected


def example_bytes() -> bytes:
    """The hex dump, whose offsets must be right."""
    (block,) = code_blocks(section(PACKET_FORMAT, "## A whole packet"), "text")
    out = b""
    for line in block.splitlines():
        offset, dump = line.split("#")[0].split(maxsplit=1)
        assert int(offset) == len(out)
        out += bytes.fromhex(dump)
    return out


def test_the_example_packet_is_what_the_library_makes() -> None:
    observer = make_observer([("module.layer.0.weight", 2, "")])
    observer.begin_step(5)
    data = struct.pack("<ff", 1, -2.5)
    report(observer, 0, data, "f32", reduced=False)
    report(observer, 0, data, "f32", reduced=True)
    observer.loss(1.25, 1.0, 7)
    packet = stamp(end_step(observer), 0x1122334455667788, 2)
    assert packet == example_bytes()


def test_the_example_packet_means_what_its_table_says() -> None:
    decoded = decode(example_bytes())
    optimizer_step, micro_batches, skipped, scale, dropped = struct.unpack(
        "<QIIdQ", decoded.sections[1]
    )
    loss, weight, tokens = struct.unpack("<ddQ", decoded.sections[5])
    found: dict[str, object] = {
        "kind": decoded.kind,
        **{key: decoded.header[key] for key in HEADER_FIELDS[5:]},
        "optimizer_step": optimizer_step,
        "micro_batches": micro_batches,
        "skipped_parameters": skipped,
        "gradient_scale": scale,
        "dropped": dropped,
        "sum_squares": decoded.total().sum_squares,
        "max_abs": decoded.total().max_abs,
        "nonfinite": decoded.total().nonfinite,
        "fingerprint": decoded.total().fingerprint,
        "elements": struct.unpack_from("<Q", decoded.sections[2], 32)[0],
        "group id": next(iter(decoded.groups())),
        "loss": loss,
        "weight": weight,
        "tokens": tokens,
    }
    rows = dict(rows_of(PACKET_FORMAT, "## A whole packet"))
    assert rows.keys() == found.keys()
    for key, text in rows.items():
        value = found[key]
        assert value == text or value == (number(text) if isinstance(value, int) else float(text))
    assert (
        decoded.total() == Sums.parse(decoded.sections[7]) == decoded.groups()[name_hash("layer.0")]
    )
    assert decoded.total().fingerprint == mix64(
        fingerprint(struct.pack("<ff", 1, -2.5), "f32") ^ name_hash("layer.0.weight")
    )


def test_documented_header_offsets() -> None:
    rows = rows_of(PACKET_FORMAT, "## Header")
    sizes = {"u16": 2, "u32": 4, "u64": 8}
    at = 0
    for (offset, kind, name, _), expected in zip(rows, HEADER_FIELDS, strict=True):
        assert (int(offset), name) == (at, expected)
        at += sizes[kind]
    assert at == HEADER.size


def random_bytes(dtype: str, count: int, source: random.Random) -> bytes:
    if dtype in ("f32", "f64"):
        code = "<f" if dtype == "f32" else "<d"
        return b"".join(struct.pack(code, source.gauss(0, 1)) for _ in range(count))
    exponents = 0x7C00 if dtype == "f16" else 0x7F80
    words = [source.getrandbits(16) for _ in range(count)]
    finite = [w if w & exponents != exponents else w & 0x80FF for w in words]
    if dtype == "bf16":  # keep squares within range
        finite = [w & 0xBFFF for w in finite]
    return b"".join(struct.pack("<H", w) for w in finite)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_real_packets_are_those_of_the_definition(dtype: str) -> None:
    source = random.Random(1)
    counts = [0, 1, 1023, 1024, 2051]
    parameters = [(f"layers.{i % 2}.p{i}", count, "") for i, count in enumerate(counts)]
    observer = make_observer(parameters)
    observer.begin_step(0)
    groups: dict[str, list[Sums]] = {"layers.0": [], "layers.1": []}
    for index, (name, count, _) in enumerate(parameters):
        data = random_bytes(dtype, count, source)
        report(observer, index, data, dtype, reduced=False)
        values = values_of(data, dtype)
        largest = max(map(abs, values), default=0.0)
        mixed = mix64(fingerprint(data, dtype) ^ name_hash(name))
        groups[name[:8]].append(Sums(sum_squares(values), largest, 0, mixed))

    scale = 4.0
    decoded = decode(end_step(observer, scale=scale))
    everything = [groups[name[:8]].pop(0) for name, _, _ in parameters]
    by_group = {
        name_hash(group): [
            s for s, p in zip(everything, parameters, strict=True) if p[0][:8] == group
        ]
        for group in groups
    }
    assert decoded.total() == combine(everything, scale)
    assert decoded.groups() == {key: combine(parts, scale) for key, parts in by_group.items()}
    assert struct.unpack_from("<Q", decoded.sections[2], 32)[0] == sum(counts)


def combine(parts: list[Sums], scale: float) -> Sums:
    squares = 0.0
    for part in parts:
        squares += part.sum_squares
    return Sums(
        squares / scale**2,
        max(p.max_abs for p in parts) / scale,
        sum(p.nonfinite for p in parts),
        sum(p.fingerprint for p in parts) & M64,
    )


def test_sketches_of_real_packets_are_those_of_the_definition() -> None:
    size, step, counts = 128, 12345, [1, 127, 128, 1000]
    source = random.Random(2)
    observer = make_observer([(f"p{i}", c, "") for i, c in enumerate(counts)], sketch_size=size)
    observer.begin_step(step)
    expected = [0.0] * size
    for index, count in enumerate(counts):
        # Small whole numbers: their sums are exact in any order.
        values = [float(source.randrange(-50, 50)) for _ in range(count)]
        report(
            observer, index, b"".join(struct.pack("<f", x) for x in values), "f32", reduced=False
        )
        for i, x in enumerate(values):
            bucket, sign = sketch_place(sketch_seed(step, f"p{index}"), i, size)
            expected[bucket] += sign * x
    assert decode(end_step(observer, scale=8.0)).sketch() == expected


def test_non_finite_elements() -> None:
    observer = make_observer([("p", 4, "")])
    observer.begin_step(0)
    report(observer, 0, struct.pack("<4f", 1, math.inf, -3, -math.inf), "f32", reduced=False)
    total = decode(end_step(observer)).total()
    assert (total.sum_squares, total.max_abs, total.nonfinite) == (math.inf, 3, 2)
    observer.begin_step(1)
    report(observer, 0, struct.pack("<4f", 1, math.inf, -3, math.nan), "f32", reduced=False)
    total = decode(end_step(observer)).total()
    assert math.isnan(total.sum_squares)
    assert (total.max_abs, total.nonfinite) == (3, 2)


def big_step(
    groups: int, *, micros: int, fingerprints: int, states: int, samples: int
) -> tuple[int, int]:
    """Size of a step's packet with a default sketch and a reduced gradient, and of its bounds."""
    parameters = [(f"layers.{i}.w", 4, "") for i in range(groups)]
    observer = make_observer(parameters, sketch_size=4096, buffers=tuple(parameters))
    observer.begin_states()
    for index in range(states):
        observer.state_sum(1 + index // groups, index % groups, 1)
    observer.begin_step(0)
    for index in range(groups):
        report(observer, index, struct.pack("<f", 1), "f32", reduced=False)
        report(observer, index, struct.pack("<f", 1), "f32", reduced=True)
    for _ in range(micros):
        observer.loss(1, 1, 1)
    for kind in range(fingerprints):
        observer.fingerprint(kind, 1)
    observer.samples(list(range(samples)))
    observer.indices(list(range(samples)))
    return len(end_step(observer)), (16 << 10) + 64 * groups + (2 << 10)


def test_size_of_a_step_packet() -> None:
    text = " ".join(section(PACKET_FORMAT, "## Limits and sizes").split())
    first = r"(\d+) \+ (\d+) . groups \+ (\d+) . micro-batches \+ (\d+) . fingerprints"
    rest = r"(\d+) \+ (\d+) . states, (\d+) \+ (\d+) . hashes and (\d+) \+ (\d+) . indices"
    base, group, micro, print_, *parts = map(int, re.findall(first + ".*?" + rest, text)[0])
    for groups, micros, prints, states, samples in [(1, 1, 0, 0, 0), (7, 3, 5, 9, 11)]:
        counts = {"micros": micros, "fingerprints": prints, "states": states, "samples": samples}
        size, _ = big_step(groups, **counts)
        expected = base + group * groups + micro * micros + print_ * prints
        expected += parts[0] + parts[1] * states if states else 0
        expected += parts[2] + parts[3] * samples + parts[4] + parts[5] * samples if samples else 0
        assert size == expected


def test_the_promise_of_a_packets_size() -> None:
    text = " ".join(section(PACKET_FORMAT, "## Limits and sizes").split())
    promise = r"up to (\d+) micro-batches and (\d+) samples in a step.*?: ([\d,]+) bytes more"
    micros, samples, more = (number(x.replace(",", "")) for x in re.findall(promise, text)[0])
    kinds = len(fingerprint_kinds())
    for groups in (1, 40):
        everything = {"micros": micros, "fingerprints": kinds}
        size, bound = big_step(groups, states=groups, samples=samples, **everything)
        assert bound - 700 < size <= bound
        size, bound = big_step(groups, states=2 * groups, samples=256, **everything)
        assert size <= bound + more + 16 * groups


def test_hello_and_note_sections() -> None:
    observer = make_observer([("module.layer.0.weight", 2, "")])
    hello = decode(observer.hello())
    assert (hello.kind, hello.sections[16]) == ("hello", b"node-b")
    assert hello.sections[17] == b"\x05\x00torch\x06\x002.13.0"
    note = decode(observer.note(True, 7, 8, "bye"))
    assert note.kind == "note"
    assert note.sections[19] == struct.pack("<IQQ", 1, 7, 8) + b"bye"
    assert (note.header["run"], note.header["segment"]) == (0, 0)


def test_every_section_the_library_writes_is_documented() -> None:
    observer = make_observer([("p", 1, "")], sketch_size=64)
    observer.begin_step(0)
    observer.fingerprint(9, 99)
    observer.state_sum(1, 0, 5)
    observer.samples([1, 2])
    observer.indices([0, 1])
    observer.mean_dot(1)
    observer.gram([1, 0, 1])
    for reduced in (False, True):
        report(observer, 0, struct.pack("<f", 1), "f32", reduced=reduced)
    packets = [observer.hello(), end_step(observer), observer.note(True, 0, 0, "")]
    written = {kind for packet in packets for kind in decode(packet).sections}
    _, rows, *_ = tables(section(PACKET_FORMAT, "## Sections"))
    documented = {int(kind) for kind, *_ in rows if kind.isdigit()}
    assert written == documented


def patched(packet: bytes, at: int, data: bytes) -> bytes:
    return packet[:at] + data + packet[at + len(data) :]


def section_bytes(kind: int, body: bytes, reserved: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<HHI", kind, reserved, len(body) if length is None else length) + body


def samples_body(rows: int, thinned: int, *hashes: int) -> bytes:
    return struct.pack(f"<QI{len(hashes)}Q", rows, thinned, *hashes)


def state_body(group: int, of: int) -> bytes:
    return struct.pack("<QIQ", group, of, 1)


Change = Callable[[bytes], bytes]
TAKEN: dict[str, Change] = {
    "as it is": lambda p: p,
    "an unknown section": lambda p: p + section_bytes(200, b"abc"),
    "a section of another kind": lambda p: p + section_bytes(16, b"host"),
    "a longer record, reserved bits": lambda p: p + section_bytes(1, p[64:96] + bytes(8), 7),
    "two reduced sections": lambda p: p + 2 * section_bytes(7, bytes(32)),
    "samples that were all left out": lambda p: p + section_bytes(9, samples_body(9, 63)),
    "65,536 samples": lambda p: p + section_bytes(9, samples_body(1 << 40, 0, *[1] * 65_536)),
    "a longer row": lambda p: p + section_bytes(11, bytes(9)),
    "a Gram matrix that is not finite": lambda p: (
        p + section_bytes(12, struct.pack("<3d", math.nan, math.inf, 1))
    ),
    "a state of each kind": lambda p: p + section_bytes(8, state_body(5, 1) + state_body(5, 2)),
}
REFUSED: dict[str, Change] = {
    "a byte after the last section": lambda p: p + b"\x01",
    "a section that ends after the packet": lambda p: p + section_bytes(200, b"abc", length=4),
    "a record that is too short": lambda p: p + section_bytes(1, bytes(31)),
    "a list that does not come out even": lambda p: p + section_bytes(3, bytes(41)),
    "a list that is too long": lambda p: p + section_bytes(6, bytes(12 * 65_537)),
    "a sketch of 65 values": lambda p: p + section_bytes(4, bytes(260)),
    "a sketch of 32 values": lambda p: p + section_bytes(4, bytes(128)),
    "more hashes than rows": lambda p: p + section_bytes(9, samples_body(1, 0, 2, 4)),
    "thinned 64 times": lambda p: p + section_bytes(9, samples_body(1, 64)),
    "a hash that was to be left out": lambda p: p + section_bytes(9, samples_body(2, 2, 8, 6)),
    "samples without their number": lambda p: p + section_bytes(9, bytes(11)),
    "half a hash": lambda p: p + section_bytes(9, samples_body(2, 0) + bytes(4)),
    "65,537 samples": lambda p: p + section_bytes(9, samples_body(1 << 40, 0, *[1] * 65_537)),
    "half an index": lambda p: p + section_bytes(10, bytes(12)),
    "half a row": lambda p: p + section_bytes(11, bytes(4)),
    "an empty Gram matrix": lambda p: p + section_bytes(12, b""),
    "a Gram matrix of one worker": lambda p: p + section_bytes(12, bytes(8)),
    "a Gram matrix of three workers": lambda p: p + section_bytes(12, bytes(48)),
    "a Gram matrix of 65 workers": lambda p: (
        patched(p, 44, struct.pack("<I", 65)) + section_bytes(12, bytes(8 * 2145))
    ),
    "a state of kind 0": lambda p: p + section_bytes(8, state_body(5, 0)),
    "a state of kind 3": lambda p: p + section_bytes(8, state_body(5, 3)),
    "half a state": lambda p: p + section_bytes(8, state_body(5, 1)[:10]),
    "two states of one group": lambda p: p + section_bytes(8, 2 * state_body(5, 1)),
    "two fingerprints of one kind": lambda p: p + section_bytes(6, 2 * bytes(12)),
    "two groups of one id": lambda p: p + section_bytes(3, 2 * bytes(40)),
    "a negative weight": lambda p: p + section_bytes(5, struct.pack("<ddQ", 1, -1, 0)),
    "a weight that is no number": lambda p: (
        p + section_bytes(5, struct.pack("<ddQ", 1, math.nan, 0))
    ),
    "another magic": lambda p: patched(p, 0, b"X"),
    "version 2": lambda p: patched(p, 4, b"\x02"),
    "kind 4": lambda p: patched(p, 6, b"\x04"),
    "65,537 replicas": lambda p: patched(p, 44, struct.pack("<I", 65_537)),
    "a replica outside its world": lambda p: patched(p, 44, struct.pack("<I", 1)),
    "more than 16 MiB": lambda p: p + section_bytes(200, bytes(16 << 20)),
}


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    opened = Aggregator(str(tmp_path / "run"))
    yield opened
    opened.close()


def stamped_packet(aggregator: Aggregator) -> bytes:
    observer = make_observer([("p", 1, "")], sketch_size=64)
    observer.begin_step(0)
    return stamp(end_step(observer), aggregator.run, aggregator.segment)


@pytest.mark.parametrize("change", TAKEN.values(), ids=TAKEN.keys())
def test_the_aggregator_takes(aggregator: Aggregator, change: Change) -> None:
    packet = reseal(change(stamped_packet(aggregator)))
    decode(packet)
    aggregator.ingest(packet)
    assert (aggregator.counters["packets"], aggregator.counters["damaged"]) == (1, 0)


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED.keys())
def test_the_aggregator_refuses(aggregator: Aggregator, change: Change) -> None:
    aggregator.ingest(reseal(change(stamped_packet(aggregator))))
    assert (aggregator.counters["packets"], aggregator.counters["damaged"]) == (0, 1)


def test_the_aggregator_refuses_a_wrong_checksum_and_length(aggregator: Aggregator) -> None:
    packet = stamped_packet(aggregator)
    aggregator.ingest(patched(packet, 60, b"\xff"))
    aggregator.ingest(packet[:-1])
    aggregator.ingest(packet[:55])
    assert aggregator.counters["damaged"] == 3


def test_packets_of_another_run_are_foreign(aggregator: Aggregator) -> None:
    packet = stamped_packet(aggregator)
    aggregator.ingest(stamp(packet, 0, 0))
    aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment + 1))
    assert aggregator.counters["foreign"] == 2


# ---- docs/runlog_format.md

WORKERS = 3
STEPS = 12
SALT = "0123456789abcdef"
NAN_STEP = 6
PARAMETERS = [("model.layers.0.w", 64, ""), ("model.layers.1.w", 64, ""), ("head.w", 64, "")]


@pytest.fixture(scope="module")
def run_log(tmp_path_factory: Any) -> Path:
    """Two segments: the first whole, the second with a missing, a silent and two equal workers, and
    NaNs in a gradient."""
    folder: Path = tmp_path_factory.mktemp("docs") / "run"
    (folder.parent / ".presum-salt").write_text(SALT, encoding="utf-8")
    source = random.Random(3)
    for segment in (1, 2):
        aggregator = Aggregator(str(folder))
        for replica in range(WORKERS):
            observer = make_observer(PARAMETERS, replica=replica, replicas=WORKERS, sketch_size=256)
            packets = [observer.hello()]
            for step in range(STEPS):
                if segment == 2 and replica == 2 and step >= 8:
                    continue
                packets.append(step_packet(observer, segment, replica, step, source))
            if segment == 2:
                report_state(observer, 1, 0, struct.pack("<f", replica), 4)
                packets.append(observer.note(True, len(packets), 1, "planted note", 100 + replica))
            for packet in packets:
                aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))
        aggregator.close()
    return folder / "presum.db"


SAMPLER_SEED, BATCH = (fingerprint_kinds()[name] for name in ("sampler_seed", "batch"))


def sample_hashes(replica: int, step: int) -> list[int]:
    return [mix64(1 + 100 * step + 10 * replica + row) for row in range(2)]


def step_packet(
    observer: Observer, segment: int, replica: int, step: int, source: random.Random
) -> bytes:
    spread = 1.0 + replica
    if segment == 2 and step == 3 and replica < 2:
        source, spread = random.Random(4), 1.0  # two workers with the same gradient
    observer.begin_states()
    report_state(observer, 1, 0, struct.pack("<f", 7 if replica == 2 and step == 4 else 6), 4)
    observer.begin_step(step)
    observer.fingerprint(SAMPLER_SEED, 40 + (replica == 1 and step >= 5))
    observer.fingerprint(BATCH, 1000 + replica)
    observer.samples(sample_hashes(replica, step))
    observer.indices([step, replica])
    for index in range(len(PARAMETERS)):
        values = [source.gauss(0.5, spread) for _ in range(64)]
        if (segment, replica, step, index) == (2, 0, NAN_STEP, 0):
            values[0] = math.nan
        data = struct.pack("<64f", *values)
        report(observer, index, data, "f32", reduced=False)
        if step % 5 == 0:
            report(observer, index, struct.pack("<64f", *([0.5] * 64)), "f32", reduced=True)
    observer.loss(math.nan if (segment, replica, step) == (2, 1, 5) else 2 + replica, 1, 100)
    if segment == 1:
        observer.loss(3.0, 2, 50)
    return end_step(observer)


@pytest.fixture
def db(run_log: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{run_log}?mode=ro", uri=True)) as connection:
        yield connection


def test_identification(db: sqlite3.Connection) -> None:
    rows = dict(rows_of(RUNLOG_FORMAT, "## Identification"))
    assert db.execute("PRAGMA application_id").fetchone()[0] == number(rows["application_id"])
    assert db.execute("PRAGMA user_version").fetchone()[0] == number(rows["user_version"])


def test_every_table_and_view_is_documented_column_by_column(db: sqlite3.Connection) -> None:
    objects = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')")
    for kind, name in objects.fetchall():
        rows = rows_of(RUNLOG_FORMAT, f"### {kind.capitalize()} `{name}`")
        info = db.execute(f'PRAGMA table_info("{name}")').fetchall()
        assert [row[0] for row in rows] == [column[1] for column in info], name
        if kind == "view":
            continue
        for row, (_, column, declared, not_null, _, key) in zip(rows, info, strict=True):
            nullable = not (not_null or key)
            assert row[1] == declared + (", NULL" if nullable else ""), f"{name}.{column}"


def test_there_is_no_document_of_what_does_not_exist(db: sqlite3.Connection) -> None:
    documented = set(re.findall(r"^### (?:Table|View) `(\w+)`", RUNLOG_FORMAT, re.MULTILINE))
    rows = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    assert documented == {name for (name,) in rows}


QUERIES = code_blocks(section(RUNLOG_FORMAT, "## Example queries"), "sql")


def test_example_queries_answer(db: sqlite3.Connection) -> None:
    answers = [db.execute(query).fetchall() for query in QUERIES]
    assert len(answers) == 9
    metrics, workers, layers, equal, missing, findings, blamed, seeds, unchecked = answers
    assert [row[0] for row in metrics] == list(range(STEPS))  # the last segment only
    assert all(a[2] <= b[2] for a, b in pairwise(workers))
    assert {row[0] for row in workers} == {10, 11, 12}
    assert {row[0] for row in layers} == {"model.layers.0", "model.layers.1", "head.w"}
    assert [(row[0], row[-1]) for row in equal] == [(3, "10,11")]
    assert missing == [(2, 12, "node-a", 8, 11, 4)]
    found = {(row[1], row[2]): row for row in findings}
    nan = found["nonfinite-gradient", "[10]"]
    # A warning: the optimiser of these workers made no step with it.
    assert nan[0] == "warning" and nan[3] <= NAN_STEP <= nan[4]
    assert all(title and remedy for *_, title, remedy in findings)
    assert ("nonfinite-gradient", 10) in {(check, rank) for check, rank, _ in blamed}
    assert seeds == [(0, 40, 0), (1, 41, 5), (2, 40, 0)]
    assert all(state in ("not triggered", "not possible") and why for _, state, why in unchecked)
    assert "shared-rng" in {check for check, *_ in unchecked}


def test_findings_and_checks_are_written_as_documented(db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT severity, check_id, also, ranks, hosts, evidence FROM findings")
    for severity, check, also, ranks, hosts, evidence in rows.fetchall():
        assert severity in ("info", "warning", "critical")
        assert check not in json.loads(also)
        assert json.loads(ranks) == sorted(set(json.loads(ranks)))
        assert set(json.loads(hosts)) <= {"node-a", "node-b"}
        assert isinstance(json.loads(evidence), dict)
    states = db.execute("SELECT check_id, min(state), max(state) FROM check_state GROUP BY 1")
    checks = {check: (low, high) for check, low, high in states}
    assert len(checks) == 27
    assert all(0 <= low <= high <= 3 for low, high in checks.values())
    assert checks["nonfinite-gradient"] == (0, 1)  # found in the second segment, passed before


def test_fingerprints_are_stored_where_they_change(db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT replica, step, value FROM fingerprint WHERE segment = 1 AND kind = ?",
        (SAMPLER_SEED,),
    )
    assert rows.fetchall() == [(0, 0, 40), (1, 0, 40), (1, 5, 41), (2, 0, 40)]


# ---- the salt

KEYS_OF = {"samples": 1, "name": 2}


def test_siphash_is_that_of_its_paper() -> None:
    key = tuple(int.from_bytes(bytes(range(at, at + 8)), "little") for at in (0, 8))
    assert siphash((key[0], key[1]), bytes(range(15))) == 0xA129CA6149BE45E5


def salted(text: str, use: str, word: int) -> int:
    return siphash((name_hash(text), KEYS_OF[use]), word.to_bytes(8, "little"))


def test_samples_are_salted_as_documented(db: sqlite3.Connection) -> None:
    text = section(RUNLOG_FORMAT, "## Salt")
    for use in KEYS_OF.values():
        assert f"SipHash-2-4(key = (salt, {use})" in text
    names = db.execute("SELECT DISTINCT salt FROM segment").fetchall()
    assert names == [(f"{salted(SALT, 'name', 0):016x}",)]
    samples = db.execute(
        "SELECT w.replica, s.step, w.rows, w.thinned, w.samples, w.indices "
        "FROM worker_step w JOIN step s ON s.id = w.step_id"
    ).fetchall()
    for replica, step, rows, thinned, stored, indices in samples:
        expected = [salted(SALT, "samples", x) for x in sample_hashes(replica, step)]
        assert (rows, thinned) == (2, 0)
        assert np.frombuffer(stored, "<u8").tolist() == expected
        assert np.frombuffer(indices, "<u8").tolist() == [step, replica]
    batches = db.execute(
        "SELECT replica, value FROM fingerprint WHERE segment = 1 AND kind = ?", (BATCH,)
    )
    assert {replica: value & M64 for replica, value in batches} == {
        replica: salted(SALT, "samples", 1000 + replica) for replica in range(WORKERS)
    }


def test_the_environment_replaces_the_file_of_the_salt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESUM_SALT", "größe")
    Aggregator(str(tmp_path / "run")).close()
    assert not (tmp_path / ".presum-salt").exists()
    monkeypatch.delenv("PRESUM_SALT")
    Aggregator(str(tmp_path / "run")).close()
    made = (tmp_path / ".presum-salt").read_text(encoding="utf-8")
    assert re.fullmatch(r"[0-9a-f]{32}\s*", made)
    assert (tmp_path / ".presum-salt").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "run" / "presum.db")) as connection:
        names = connection.execute("SELECT salt FROM segment ORDER BY segment").fetchall()
    expected = [salted(text, "name", 0) for text in ("größe", made.strip())]
    assert names == [(f"{name:016x}",) for name in expected]


# ---- blobs


def test_blobs_are_laid_out_as_documented(db: sqlite3.Connection) -> None:
    identity, cosines, workers = db.execute(
        "SELECT id, cosines, workers FROM step WHERE segment = 1 AND step = 1"
    ).fetchone()
    assert len(np.frombuffer(cosines, "<f4")) == workers * (workers - 1) // 2
    for replica, micro, weight in db.execute(
        "SELECT replica, micro, weight FROM worker_step WHERE step_id = ?", (identity,)
    ):
        batches = np.frombuffer(micro, "<f8").reshape(-1, 3)
        np.testing.assert_array_equal(batches, [[2 + replica, 1, 100], [3, 2, 50]])
        assert weight == batches[:, 1].sum()
    norms = db.execute("SELECT norms, maxima FROM group_step WHERE step_id = ?", (identity,))
    for norm, largest in norms:
        assert len(np.frombuffer(norm, "<f4")) == len(np.frombuffer(largest, "<f4")) == workers
    for step, lengths in [(3, [24, None, None]), (4, [24, None, 24])]:
        states = db.execute(
            "SELECT length(w.states) FROM worker_step w JOIN step s ON s.id = w.step_id "
            "WHERE s.segment = 1 AND s.step = ? ORDER BY w.replica",
            (step,),
        )
        assert [length for (length,) in states] == lengths, "stored once where equal"
    finals = db.execute("SELECT replica, optimizer_steps, states FROM final_state").fetchall()
    for replica, steps, words in finals:
        group, of, value = np.frombuffer(words, "<u8").tolist()
        bits = struct.pack("<f", replica)
        assert (steps, group, of) == (100 + replica, name_hash("model.layers.0"), 1)
        assert value == mix64(fingerprint(bits, "f32") ^ name_hash(PARAMETERS[0][0]))
    assert [replica for replica, *_ in finals] == [0, 1, 2]
    squares = sum(
        np.frombuffer(norm, "<f4").astype(float) ** 2
        for (norm,) in db.execute("SELECT norms FROM group_step WHERE step_id = ?", (identity,))
    )
    total = db.execute("SELECT grad_norm FROM worker_step WHERE step_id = ?", (identity,))
    np.testing.assert_allclose(np.sqrt(squares), [norm for (norm,) in total], rtol=1e-6)


def test_fingerprints_of_groups_add_up_to_the_workers(db: sqlite3.Connection) -> None:
    steps = db.execute("SELECT id FROM step").fetchall()
    for (identity,) in steps:
        groups = db.execute("SELECT fingerprints FROM group_step WHERE step_id = ?", (identity,))
        sums = sum(np.frombuffer(blob, "<u4").astype(object) for (blob,) in groups)
        workers = db.execute(
            "SELECT fingerprint FROM worker_step WHERE step_id = ? ORDER BY replica", (identity,)
        )
        assert [int(x) % 2**32 for x in sums] == [x % 2**32 for (x,) in workers]


def test_groups_keep_the_order_of_the_model(db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT name FROM group_name WHERE segment = 1 ORDER BY position")
    assert [name for (name,) in rows] == ["model.layers.0", "model.layers.1", "head.w"]


def test_null_rules(db: sqlite3.Connection) -> None:
    single = db.execute(
        "SELECT w.micro, w.loss, w.loss_nonfinite FROM worker_step w "
        "JOIN step s ON s.id = w.step_id WHERE s.segment = 2 AND s.step = 5 AND w.replica = 1"
    ).fetchone()
    assert single == (None, None, 1)
    reduced = db.execute("SELECT step FROM steps WHERE reduced_norm IS NOT NULL AND segment = 1")
    assert [step for (step,) in reduced] == [0, 5, 10]
    # A worker that gave no reduced gradient has no fingerprint of it either.
    gone = db.execute(
        "SELECT count(*) FROM workers "
        "WHERE reduced_norm IS NULL AND reduced_fingerprint IS NOT NULL"
    ).fetchone()
    assert gone == (0,)


def test_segments_and_notes(db: sqlite3.Connection) -> None:
    segments = db.execute("SELECT segment, run, closed FROM segment").fetchall()
    assert [(segment, closed) for segment, _, closed in segments] == [(1, 1), (2, 1)]
    assert all(re.fullmatch("[0-9a-f]{16}", run) for _, run, _ in segments)
    assert len({run for _, run, _ in segments}) == 2
    sent = db.execute("SELECT sent, dropped FROM worker ORDER BY segment, replica").fetchall()
    assert sent == [(None, None)] * 3 + [(13, 1)] * 2 + [(9, 1)]
    assert db.execute("SELECT count(*) FROM note").fetchone() == (3,)


# ---- docs/metrics.md


def test_every_measured_column_has_its_formula(db: sqlite3.Connection) -> None:
    metrics = set(re.findall(r"`(\w+)`", METRICS))
    step = {column[1] for column in db.execute("PRAGMA table_info(step)")}
    named = {"id", "segment", "module", "shard", "step", "workers", "workers_expected"}
    assert step - named <= metrics, sorted(step - named - metrics)
    assert {"cosine_to_others", "grad_norm", "grad_max", "nonfinite", "loss", "tokens"} <= metrics


# ---- all documents


def documents() -> list[Path]:
    return sorted([*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")])


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("http://", "https://")):
            assert (document.parent / link).exists(), link
