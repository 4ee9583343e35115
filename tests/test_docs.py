# SPDX-License-Identifier: Apache-2.0
"""The formats as docs/ describes them, held against what the library writes.

Every vector, table and query is parsed from the Markdown. The packet decoder, the fingerprint and
the sketch below are written from docs/packet_format.md alone, in plain Python.
"""

from __future__ import annotations

import array
import ctypes
import ctypes.util
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

from presum._core import Aggregator, Observer, canonical_name, stamp

DOCS = Path(__file__).parents[1] / "docs"
PACKET_FORMAT = (DOCS / "packet_format.md").read_text(encoding="utf-8")
RUNLOG_FORMAT = (DOCS / "runlog_format.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")

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
    )


def report(observer: Observer, parameter: int, data: bytes, dtype: str, *, reduced: bool) -> None:
    buffer = array.array("B", data)
    count = len(data) // {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}[dtype]
    take = observer.reduced_gradient if reduced else observer.gradient
    take(parameter, buffer.buffer_info()[0], count, DTYPES[dtype])


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


def test_size_of_a_step_packet() -> None:
    text = " ".join(section(PACKET_FORMAT, "## Limits and sizes").split())
    base, group, micro = map(int, re.findall(r"(\d+) \+ (\d+) . groups \+ (\d+) . micro", text)[0])
    for groups, micros in [(1, 1), (7, 3)]:
        parameters = [(f"layers.{i}.w", 4, "") for i in range(groups)]
        observer = make_observer(parameters, sketch_size=4096)
        observer.begin_step(0)
        for index in range(groups):
            report(observer, index, struct.pack("<f", 1), "f32", reduced=False)
            report(observer, index, struct.pack("<f", 1), "f32", reduced=True)
        for _ in range(micros):
            observer.loss(1, 1, 1)
        assert len(end_step(observer)) == base + group * groups + micro * micros


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
    for reduced in (False, True):
        report(observer, 0, struct.pack("<f", 1), "f32", reduced=reduced)
    packets = [observer.hello(), end_step(observer), observer.note(False, 0, 0, "")]
    written = {kind for packet in packets for kind in decode(packet).sections}
    _, rows, *_ = tables(section(PACKET_FORMAT, "## Sections"))
    documented = {int(kind) for kind, *_ in rows if kind.isdigit()}
    assert written == documented


def patched(packet: bytes, at: int, data: bytes) -> bytes:
    return packet[:at] + data + packet[at + len(data) :]


def section_bytes(kind: int, body: bytes, reserved: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<HHI", kind, reserved, len(body) if length is None else length) + body


Change = Callable[[bytes], bytes]
TAKEN: dict[str, Change] = {
    "as it is": lambda p: p,
    "an unknown section": lambda p: p + section_bytes(200, b"abc"),
    "a section of another kind": lambda p: p + section_bytes(16, b"host"),
    "a longer record, reserved bits": lambda p: p + section_bytes(1, p[64:96] + bytes(8), 7),
    "two reduced sections": lambda p: p + 2 * section_bytes(7, bytes(32)),
}
REFUSED: dict[str, Change] = {
    "a byte after the last section": lambda p: p + b"\x01",
    "a section that ends after the packet": lambda p: p + section_bytes(200, b"abc", length=4),
    "a record that is too short": lambda p: p + section_bytes(1, bytes(31)),
    "a list that does not come out even": lambda p: p + section_bytes(3, bytes(41)),
    "a list that is too long": lambda p: p + section_bytes(6, bytes(12 * 65_537)),
    "a sketch of 65 values": lambda p: p + section_bytes(4, bytes(260)),
    "a sketch of 32 values": lambda p: p + section_bytes(4, bytes(128)),
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
PARAMETERS = [("model.layers.0.w", 64, ""), ("model.layers.1.w", 64, ""), ("head.w", 64, "")]


@pytest.fixture(scope="module")
def run_log(tmp_path_factory: Any) -> Path:
    """Two segments: the first whole, the second with a missing, a silent and two equal workers."""
    folder: Path = tmp_path_factory.mktemp("docs") / "run"
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
                packets.append(observer.note(True, len(packets), 1, "planted note"))
            for packet in packets:
                aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))
        aggregator.close()
    return folder / "presum.db"


def step_packet(
    observer: Observer, segment: int, replica: int, step: int, source: random.Random
) -> bytes:
    spread = 1.0 + replica
    if segment == 2 and step == 3 and replica < 2:
        source, spread = random.Random(4), 1.0  # two workers with the same gradient
    observer.begin_step(step)
    for index in range(len(PARAMETERS)):
        values = [source.gauss(0.5, spread) for _ in range(64)]
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
    assert len(answers) == 5
    metrics, workers, layers, equal, missing = answers
    assert [row[0] for row in metrics] == list(range(STEPS))  # the last segment only
    assert all(a[2] <= b[2] for a, b in pairwise(workers))
    assert {row[0] for row in workers} == {10, 11, 12}
    assert {row[0] for row in layers} == {"model.layers.0", "model.layers.1", "head.w"}
    assert [(row[0], row[-1]) for row in equal] == [(3, "10,11")]
    assert missing == [(2, 12, "node-a", 8, 11, 4)]


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
    squares = sum(
        np.frombuffer(norm, "<f4").astype(float) ** 2
        for (norm,) in db.execute("SELECT norms FROM group_step WHERE step_id = ?", (identity,))
    )
    total = db.execute("SELECT grad_norm FROM worker_step WHERE step_id = ?", (identity,))
    np.testing.assert_allclose(np.sqrt(squares), [norm for (norm,) in total], rtol=1e-6)


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
