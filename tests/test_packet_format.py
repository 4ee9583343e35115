# SPDX-License-Identifier: Apache-2.0
"""docs/packet_format.md and its vectors, held against the library and tests/packet_decoder.py."""

from __future__ import annotations

import array
import json
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from markdown_tables import number, rows_of, section
from observers import DTYPES, audit_of, end_step, make_observer, observer_of, report
from packet_decoder import (
    HEADER,
    HEADER_FIELDS,
    KEYS,
    M64,
    Sums,
    decode,
    fingerprint,
    mix64,
    name_hash,
    row_hash,
    sketch_place,
    sketch_seed,
    splitmix64,
    sum_squares,
    values_of,
)
from presum._core import (
    FingerprintKind,
    Moments,
    StateKind,
    Watchdog,
    canonical_name,
    hash_rows,
)

DOCS = Path(__file__).parents[1] / "docs"
PACKET_FORMAT = (DOCS / "packet_format.md").read_text(encoding="utf-8")
VECTORS = json.loads((DOCS.parent / "tests/data/hash_vectors.json").read_text(encoding="utf-8"))
TIMES = 15


def vectors(of: str) -> list[list[str]]:
    return [list(one.values()) for one in VECTORS[of]]


def elements_of(text: str, dtype: str) -> bytes:
    if text == "none":
        return b""
    if text.startswith("bits "):
        return b"".join(struct.pack("<H", int(word, 16)) for word in text.split()[1:])
    if found := re.fullmatch(r"i . 0\.5 for i = 0 \S (\d+)", text):
        return b"".join(struct.pack("<f", i * 0.5) for i in range(int(found[1]) + 1))
    code = {"f32": "f", "f64": "d"}[dtype]
    return b"".join(struct.pack("<" + code, float(x)) for x in text.split(", "))


@pytest.mark.parametrize(("dtype", "elements", "expected"), vectors("fingerprint"))
def test_fingerprint_vectors_hold_here_and_in_the_library(
    dtype: str, elements: str, expected: str
) -> None:
    data = elements_of(elements, dtype)
    assert fingerprint(data, dtype) == number(expected)
    observer = observer_of([("w", 1, "")])
    observer.begin_step(0)
    report(observer, 0, data, dtype, reduced=False)
    total = decode(end_step(observer)).total()
    assert total.fingerprint == mix64(number(expected) ^ name_hash("w"))


def test_mix64_and_splitmix64_vectors() -> None:
    rows = vectors("mixing")
    assert len(rows) >= 3
    for x, mixed, split in rows:
        assert mix64(number(x)) == number(mixed)
        assert splitmix64(number(x)) == number(split)


def test_fingerprint_keys() -> None:
    rows = vectors("keys")
    assert len(rows) >= 3
    for index, key in rows:
        assert KEYS[int(index)] == number(key)


def test_name_hash_vectors_hold_here_and_in_the_library() -> None:
    rows = vectors("name_hash")
    assert len(rows) >= 3
    for name, expected in rows:
        assert name_hash(name) == number(expected)
        observer = observer_of([("w", 1, name)])
        observer.begin_step(0)
        assert decode(end_step(observer)).groups().keys() == {number(expected)}


def test_names_and_default_groups() -> None:
    rows = vectors("names")
    assert len(rows) >= 4
    for name, canonical, group in rows:
        assert canonical_name(name) == canonical
        names = decode(observer_of([(name, 9, "")]).hello()).sections[18]
        identity, elements, length = struct.unpack_from("<QQH", names)
        assert (identity, elements) == (name_hash(group), 9)
        assert names[18 : 18 + length].decode() == group


def test_sketch_vectors_hold_here_and_in_the_library() -> None:
    rows = vectors("sketch")
    assert len(rows) >= 4
    for step, parameter, size, seed, i, bucket, sign in rows:
        assert sketch_seed(int(step), parameter) == number(seed)
        expected = (int(bucket), 1 if sign == "+" else -1)
        assert sketch_place(number(seed), int(i), int(size)) == expected
        observer = observer_of([(parameter, 1, "")], sketch_size=int(size))
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
    rows = vectors("row_hash")
    assert {row[0] for row in rows} == {"u8", "u16", "u32", "u64"}
    for kind, text, mask_text, expected in rows:
        row, mask = row_of(text), row_of(mask_text) or None
        assert row_hash(row, mask) == number(expected), text
        assert library_row_hashes([row], kind, [mask] if mask else None) == [number(expected)], text


ARRAY_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def library_row_hashes(
    rows: list[list[int]], kind: str, masks: list[list[int]] | None, mask_kind: str = "u8"
) -> list[int]:
    def of(code: str, values: list[list[int]]) -> np.ndarray:
        return np.array(values, ARRAY_CODES[code])

    return hash_rows(of(kind, rows), of(mask_kind, masks) if masks else None)


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


SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f64": 8}


def end_of(fields: list[list[str]]) -> int:
    """Where a table of fields ends, whose offsets must be right."""
    at = 0
    for offset, kind, *_ in fields:
        assert int(offset) == at
        at += SIZES[kind]
    return at


def test_documented_header_offsets() -> None:
    rows = rows_of(PACKET_FORMAT, "### Header")
    assert [name for _, _, name, _ in rows] == HEADER_FIELDS
    assert end_of(rows) == HEADER.size


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
    observer = observer_of(parameters)
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
    observer = observer_of([(f"p{i}", c, "") for i, c in enumerate(counts)], sketch_size=size)
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


def big_step(groups: int, *, micros: int, states: int, samples: int) -> tuple[int, int]:
    """Size of a step's packet with a default sketch and a reduced gradient, and of its bounds."""
    parameters = [(f"layers.{i}.w", 4, "") for i in range(groups)]
    observer = observer_of(parameters, sketch_size=4096, buffers=tuple(parameters))
    observer.begin_states()
    for index in range(states):
        observer.state_sum(StateKind(1 + index // groups), index % groups, 1)
    observer.begin_step(1)
    for index in range(groups):
        report(observer, index, struct.pack("<f", 1), "f32", reduced=False)
        report(observer, index, struct.pack("<f", 1), "f32", reduced=True)
    for _ in range(micros):
        observer.loss(1, 1, 1)
    for kind in FingerprintKind:
        observer.fingerprint(kind, 1)
    observer.samples(list(range(samples)))
    observer.indices(list(range(samples)))
    return len(end_step(observer)), (16 << 10) + 64 * groups + (2 << 10)


def sketch_of_layer(step: int, members: dict[str, list[float]]) -> list[float]:
    found = [0.0] * 256
    for name, values in members.items():
        seed = sketch_seed(step, name)
        for i, value in enumerate(values):
            bucket, sign = sketch_place(seed, i, 256)
            found[bucket] += sign * value
    return found


def fingerprint_of_layer(members: dict[str, list[float]]) -> int:
    packed = {name: struct.pack(f"<{len(v)}f", *v) for name, v in members.items()}
    return sum(mix64(fingerprint(d, "f32") ^ name_hash(n)) for n, d in packed.items()) & M64


def test_layers_are_sketches_of_what_went_in_and_came_out() -> None:
    names = ["layers.0.weight", "layers.0.bias", "layers.1.weight"]
    observer = observer_of([(name, 5, "") for name in names], sketch_size=64)
    observer.begin_step(25)
    values = {
        True: [[0.5 * i + n for i in range(5)] for n in range(3)],
        False: [[-2.0 * i + n for i in range(5)] for n in range(3)],
    }
    for reduced, of in values.items():
        for index, one in enumerate(of):
            report(observer, index, struct.pack("<5f", *one), "f32", reduced=reduced)
    layers = decode(end_step(observer)).layers()
    assert list(layers) == [name_hash("layers.0"), name_hash("layers.1")]
    for group, members in ((0, [0, 1]), (1, [2])):
        layer = layers[name_hash(f"layers.{group}")]
        own, reduced_ = ({names[i]: values[r][i] for i in members} for r in (False, True))
        assert layer.own == sketch_of_layer(25, own)
        assert layer.reduced == sketch_of_layer(25, reduced_)
        assert layer.fingerprint == fingerprint_of_layer(reduced_)
        assert layer.elements == layer.part == 5 * len(members)
        assert layer.squares == sum(x * x for one in reduced_.values() for x in one)
        assert (layer.shard, layer.kept) == (0, 0)


@pytest.mark.parametrize("groups", [1, 40])
def test_a_packet_is_small(groups: int) -> None:
    promise = section(PACKET_FORMAT, "# Packet format")
    assert "16 KiB + 64 bytes a layer + 2 KiB" in " ".join(promise.split())
    size, bound = big_step(groups, micros=16, states=groups, samples=28)
    assert bound - 700 < size + 8 + len(decode(timed_step(16)).sections[TIMES]) <= bound


def test_every_section_the_library_writes_is_documented() -> None:
    observer = observer_of([("p", 1, "")], sketch_size=64)
    observer.begin_step(0)
    observer.fingerprint(FingerprintKind.SAMPLER_SEED, 99)
    observer.state_sum(StateKind.PARAMETERS, 0, 5)
    observer.samples([1, 2])
    observer.indices([0, 1])
    observer.gram(np.array([1, 0, 1], float))
    values = np.ones(1, np.float32)
    observer.audit(audit_of([values], values)["record"])
    for reduced in (False, True):
        report(observer, 0, struct.pack("<f", 1), "f32", reduced=reduced)
    moments = Moments(observer)
    moments.begin(saved=True, optimizer_steps=3.0, learning_rate=0.5)
    moments.generator(1, 11)
    moments.parameter(0, values.ctypes.data, 1, DTYPES["f32"], first=0, shard=0, in_order=True)
    packets = [observer.hello(), end_step(observer), observer.goodbye(0)]
    packets.append(moments.packet())
    watchdog = Watchdog(rank=0, host="h", period=1.0, stall_seconds=60.0, thread=0)
    packets += [timed_step(), watchdog.beat("", "", "", "")]
    written = {kind for packet in packets for kind in decode(packet).sections}
    rows = rows_of(PACKET_FORMAT, "### Sections")
    documented = {int(kind) for kind, *_ in rows if kind.isdigit()}
    assert written == documented


def timed_step(micro_batches: int = 1) -> bytes:
    """The packet of a step whose times are known: not the first one."""
    observer = make_observer([("p", 1, "")], knows_optimizer=True)
    packets = []
    for _ in range(2):
        for k in range(micro_batches):
            last = k == micro_batches - 1
            observer.enter_module()
            observer.backward(True)
            observer.pass_begins(last, not last, True, 0.0)
            observer.pass_ends(1.0, None, 1.0, 1.0, False)
        observer.optimizer_begins()
        observer.optimizer_steps(0)
        ended = observer.take_ended()
        assert ended is not None
        packets.append(ended.packet())
    assert TIMES not in decode(packets[0]).sections
    return packets[1]
