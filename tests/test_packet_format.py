# SPDX-License-Identifier: Apache-2.0
"""docs/packet_format.md, held against the library and the decoder of tests/packet_decoder.py.

Every vector and table is parsed from the Markdown.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import math
import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from markdown_tables import code_blocks, number, rows_of, section, tables
from observers import DTYPES, audit_of, end_step, make_observer, observer_of, report, report_state
from packet_decoder import (
    AUDIT,
    AUDIT_FIELDS,
    AUDIT_WITHOUT_ULPS,
    HEADER,
    HEADER_FIELDS,
    KEYS,
    M64,
    Sums,
    decode,
    fingerprint,
    mix64,
    name_hash,
    reseal,
    row_hash,
    sketch_place,
    sketch_seed,
    splitmix64,
    sum_squares,
    values_of,
)
from presum._core import (
    Aggregator,
    FingerprintKind,
    Moments,
    StateKind,
    Watchdog,
    canonical_name,
    hash_rows,
    stamp,
)

DOCS = Path(__file__).parents[1] / "docs"
PACKET_FORMAT = (DOCS / "packet_format.md").read_text(encoding="utf-8")
KINDS = {kind.name.lower(): kind.value for kind in FingerprintKind}
KIND_TABLE = DOCS.parent / "src" / "records" / "fingerprint_kinds.cc"


def elements_of(text: str, dtype: str) -> bytes:
    if text == "none":
        return b""
    if text.startswith("bits "):
        return b"".join(struct.pack("<H", int(word, 16)) for word in text.split()[1:])
    if found := re.fullmatch(r"i . 0\.5 for i = 0 \S (\d+)", text):
        return b"".join(struct.pack("<f", i * 0.5) for i in range(int(found[1]) + 1))
    code = {"f32": "f", "f64": "d"}[dtype]
    return b"".join(struct.pack("<" + code, float(x)) for x in text.split(", "))


FINGERPRINT_VECTORS = rows_of(PACKET_FORMAT, "### Fingerprint vectors")


@pytest.mark.parametrize(("dtype", "elements", "expected"), FINGERPRINT_VECTORS)
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
        observer = observer_of([("w", 1, name)])
        observer.begin_step(0)
        assert decode(end_step(observer)).groups().keys() == {number(expected)}


def test_names_and_default_groups() -> None:
    rows = rows_of(PACKET_FORMAT, "### Names and groups")
    assert len(rows) >= 4
    for name, canonical, group in rows:
        assert canonical_name(name) == canonical
        names = decode(observer_of([(name, 9, "")]).hello()).sections[18]
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


def test_kinds_of_fingerprints_are_those_of_the_library() -> None:
    """Numbers and names by the extension; the rest is only in the source."""
    rows = rows_of(PACKET_FORMAT, "### Kinds of fingerprints")
    assert {name: int(kind) for kind, name, *_ in rows} == KINDS
    assert [int(kind) for kind, *_ in rows] == sorted(KINDS.values())
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
    observer = observer_of(
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
    final = decode(observer.goodbye(7))
    step = decode(end_step(observer))
    for decoded in (final, step):
        assert {(group, of): value for group, of, value in decoded.states()} == expected
    assert struct.unpack("<Q", final.sections[20]) == (7,)
    assert 20 not in decode(observer.note("")).sections


def test_samples_are_thinned_out_as_documented() -> None:
    text = " ".join(section(PACKET_FORMAT, "### 9 samples").split())
    (most,) = map(int, re.findall(r"at most (\d+) hashes", text))
    indices_text = " ".join(section(PACKET_FORMAT, "### 10 indices").split())
    (first,) = re.findall(r"sends the first ([\d,]+)", indices_text)
    source = random.Random(5)
    for count in (1, most, most + 1, 5000):
        hashes = [source.getrandbits(64) for _ in range(count)]
        observer = observer_of([("p", 1, "")])
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
        assert indices == list(range(min(count, number(first.replace(",", "")))))


def test_product_vectors_hold_in_the_library() -> None:
    rows = rows_of(PACKET_FORMAT, "### Product vectors")
    assert {kind for kind, *_ in rows} == {"12"}
    for kind, scale, before, body in rows:
        values = [float(x) for x in before.split(", ")]
        expected = struct.pack(f"<{len(values)}d", *(x / float(scale) ** 2 for x in values))
        assert bytes.fromhex(body.strip("`")) == expected
        observer = observer_of([], replica=0, replicas=2)
        observer.begin_step(0)
        observer.gram(np.array(values))
        assert decode(end_step(observer, scale=float(scale))).sections[int(kind)] == expected


def test_documented_audit_offsets() -> None:
    fields, codes = tables(section(PACKET_FORMAT, "### 13 audit"))
    sizes = {"u8": 1, "u64": 8, "f64": 8}
    at = 0
    for (offset, kind, name, _), expected in zip(fields, AUDIT_FIELDS, strict=True):
        assert (int(offset), name) == (at, expected)
        at += sizes[kind]
    assert at == AUDIT.size
    listed = " ".join(section(PACKET_FORMAT, "## Sections").split())
    assert f"record, {AUDIT_WITHOUT_ULPS.size} or {AUDIT.size} bytes" in listed
    assert [name for name, _ in codes] == ["gradient, accumulation", "order", "division", "repeat"]


def codes_of(field: str) -> list[str]:
    _, codes = tables(section(PACKET_FORMAT, "### 13 audit"))
    (listed,) = [text for names, text in codes if field in names.split(", ")]
    numbers, names = zip(*(entry.split(" ") for entry in listed.split(", ")), strict=True)
    assert list(map(int, numbers)) == list(range(len(names)))
    return list(names)


@pytest.mark.parametrize("finite", [True, False])
def test_an_audit_travels_as_documented(finite: bool) -> None:
    source = random.Random(6)
    rows = [array.array("f", [source.gauss(0, 1) for _ in range(2000)]) for _ in range(3)]
    if not finite:
        rows = [array.array("f", [math.inf] * 2000) for _ in range(3)]
    result = array.array("f", [0.0] * 2000)
    for row in rows:
        result = array.array("f", [a + b for a, b in zip(result, row, strict=True)])
    compared = audit_of([np.array(row, np.float32) for row in rows], np.array(result, np.float32))
    observer = observer_of([])
    observer.begin_step(0)
    observer.audit(compared["record"], repeat=True)
    packet = end_step(observer)
    observer.begin_step(1)
    assert len(packet) - len(end_step(observer)) == (85 if finite else 53)
    found = decode(packet).audit()
    for field in ("elements", "differing", "wrong", "relative_l2", "error_max"):
        assert str(found[field]) == str(compared[field])
    for field in ("accumulation", "order", "division"):
        assert codes_of(field)[int(found[field])] == compared[field]
    assert codes_of("gradient")[int(found["gradient"])] == "fp32"
    assert codes_of("repeat")[int(found["repeat"])] == "equal"
    distances = {field[5:]: x for field, x in found.items() if field.startswith("ulps_")}
    assert distances == (compared["ulps"] if finite else {})


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
    observer = observer_of([("module.layer.0.weight", 2, "")])
    observer.begin_step(5)
    data = struct.pack("<ff", 1, -2.5)
    report(observer, 0, data, "f32", reduced=False)
    report(observer, 0, data, "f32", reduced=True)
    observer.loss(1.25, 1.0, 7)
    packet = stamp(end_step(observer), 0x1122334455667788, 2)
    assert packet == example_bytes()


def test_the_example_packet_means_what_its_table_says() -> None:
    decoded = decode(example_bytes())
    optimizer_step, micro_batches, skipped, scale, dropped, unreduced, window, use = struct.unpack(
        "<QIIdQQII", decoded.sections[1]
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
        "unreduced_steps": unreduced,
        "window": window,
        "use": use,
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


def test_non_finite_elements() -> None:
    observer = observer_of([("p", 4, "")])
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
    groups: int, *, micros: int, fingerprints: int, states: int, samples: int, layers: bool = False
) -> tuple[int, int]:
    """Size of a step's packet with a default sketch and a reduced gradient, and of its bounds."""
    parameters = [(f"layers.{i}.w", 4, "") for i in range(groups)]
    observer = observer_of(parameters, sketch_size=4096, buffers=tuple(parameters))
    observer.begin_states()
    for index in range(states):
        observer.state_sum(StateKind(1 + index // groups), index % groups, 1)
    observer.begin_step(25 if layers else 1)
    for index in range(groups):
        report(observer, index, struct.pack("<f", 1), "f32", reduced=False)
        report(observer, index, struct.pack("<f", 1), "f32", reduced=True)
    for _ in range(micros):
        observer.loss(1, 1, 1)
    for kind in itertools.islice(FingerprintKind, fingerprints):
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
        expected = base + group * groups + micro * micros
        expected += print_ * (prints + 1)  # zero_share
        expected += parts[0] + parts[1] * states if states else 0
        expected += parts[2] + parts[3] * samples + parts[4] + parts[5] * samples if samples else 0
        assert size == expected
        (head, each) = map(int, re.findall(r"layers add (\d+) \+ (\d+) . groups", text)[0])
        assert big_step(groups, **counts, layers=True)[0] == expected + head + each * groups


def sketch_of_layer(step: int, members: dict[str, list[float]], first: int = 0) -> list[float]:
    found = [0.0] * 256
    for name, values in members.items():
        seed = sketch_seed(step, name)
        for i, value in enumerate(values):
            bucket, sign = sketch_place(seed, first + i, 256)
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


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_layers_of_a_sharded_model(kept: bool, scale: float) -> None:
    observer = observer_of([("layers.0.weight", 500, "")], sketch_size=64)
    observer.begin_step(25)
    whole = [0.5 * i - 3 for i in range(500)]
    part = whole[300:] if kept else [7.0 - i for i in range(200)]
    report(observer, 0, struct.pack("<500f", *whole), "f32", reduced=False)
    assert observer.layers_due
    for reduced, values in ((False, whole[300:]), (True, part)):
        data = ctypes.create_string_buffer(struct.pack("<200f", *values), 800)
        address, factor = ctypes.addressof(data), scale if reduced else 1.0
        observer.gradient_part(0, address, 200, 0, 300, 9, factor, reduced)
    (layer,) = decode(end_step(observer)).layers().values()
    assert layer.own == sketch_of_layer(25, {"layers.0.weight": whole})
    mean = [scale * x for x in part]
    assert layer.reduced == sketch_of_layer(25, {"layers.0.weight": mean}, first=300)
    assert layer.fingerprint == fingerprint_of_layer({"layers.0.weight": part})
    assert (layer.elements, layer.part, layer.shard) == (500, 200, 9)
    assert layer.squares == sum(x * x for x in mean)
    assert layer.kept == (kept and scale == 1)


def test_a_layer_of_which_a_part_is_unknown_is_not_told() -> None:
    observer = observer_of([("a.0.w", 1, ""), ("a.1.w", 1, "")], sketch_size=64)
    observer.begin_step(25)
    for index, reduced in itertools.product((0, 1), (False, True)):
        report(observer, index, struct.pack("<f", 1), "f32", reduced=reduced)
    observer.layer_unknown(0)
    assert list(decode(end_step(observer)).layers()) == [name_hash("a.1")]


def test_the_promise_of_a_packets_size() -> None:
    text = " ".join(section(PACKET_FORMAT, "## Limits and sizes").split())
    promise = r"up to (\d+) micro-batches and (\d+) samples in a step.*?: ([\d,]+) bytes more"
    micros, samples, more = (number(x.replace(",", "")) for x in re.findall(promise, text)[0])
    kinds = len(KINDS)
    times = 8 + len(decode(timed_step(micros)).sections[TIMES])  # with the section's header
    for groups in (1, 40):
        everything = {"micros": micros, "fingerprints": kinds}
        size, bound = big_step(groups, states=groups, samples=samples, **everything)
        assert bound - 700 < size + times <= bound
        size, bound = big_step(groups, states=2 * groups, samples=256, **everything)
        assert size + times <= bound + more + 16 * groups


def test_hello_and_note_sections() -> None:
    observer = observer_of([("module.layer.0.weight", 2, "")])
    hello = decode(observer.hello())
    assert (hello.kind, hello.sections[16]) == ("hello", b"node-b")
    assert hello.sections[17] == b"\x05\x00torch\x06\x002.13.0"
    note = decode(observer.note("hm"))
    assert note.kind == "note"
    assert note.sections[19] == struct.pack("<IQQ", 0, 0, 0) + b"hm"
    assert (note.header["run"], note.header["segment"]) == (0, 0)


def test_counts_are_stamped() -> None:
    observer = observer_of([("p", 1, "")], sketch_size=64)
    note = decode(stamp(observer.goodbye(0), 1, 2, 7, 8))
    assert (note.header["run"], note.header["segment"]) == (1, 2)
    assert note.sections[19] == struct.pack("<IQQ", 1, 7, 8)
    observer.begin_step(0)
    step = decode(stamp(end_step(observer), 1, 2, 7, 8))
    assert struct.unpack_from("<Q", step.sections[1], 24) == (8,)


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
    _, rows, *_ = tables(section(PACKET_FORMAT, "## Sections"))
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


TIMES, BEAT, PLACES = 15, 23, 24


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_times_travel_as_documented(micro_batches: int) -> None:
    (fields,) = tables(section(PACKET_FORMAT, "### 15 times"))
    sizes, at = {"f64": 8, "u32": 4}, 0
    for offset, kind, *_ in fields:
        assert int(offset) == at
        at += sizes[kind]
    body = decode(timed_step(micro_batches)).sections[TIMES]
    micro = list(struct.iter_unpack("<3f", body[at:]))
    assert len(micro) == (0 if micro_batches == 1 else micro_batches)
    values = struct.unpack_from("<8dI", body)
    assert all(seconds >= 0 for seconds in values[:6]) and values[8] == 0
    assert 0 < sum(values[:6]) < 1


def test_a_beat_travels_as_documented() -> None:
    (fields,) = tables(section(PACKET_FORMAT, "### 23 beat"))
    sizes, at = {"u64": 8, "f64": 8, "u32": 4, "u8": 1}, 0
    for offset, kind, *_ in fields:
        assert int(offset) == at
        at += sizes[kind]
    timed_step()  # an event
    watchdog = Watchdog(rank=3, host="node", period=1.5, stall_seconds=60.0, thread=0)
    packet = decode(watchdog.beat("barrier", "main() of a.py:3", "frames", "last"))
    assert packet.header["rank"] == 3
    beat = packet.sections[BEAT]
    assert len(beat) == at
    events, _step, _micro, phase, waiting, lock_held = struct.unpack_from("<QQIBBB", beat)
    assert events > 0 and phase <= 5 and waiting == 0 and lock_held == 0
    assert struct.unpack_from("<2d", beat, 56) == (1.5, 60.0)
    texts, body = [], packet.sections[PLACES]
    while body:
        (size,) = struct.unpack_from("<H", body)
        texts.append(body[2 : 2 + size].decode())
        body = body[2 + size :]
    assert texts == ["node", "barrier", "main() of a.py:3", "frames", "last"]


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
    "a longer record, reserved bits": lambda p: p + section_bytes(1, p[64:112] + bytes(8), 7),
    "two reduced sections": lambda p: p + 2 * section_bytes(7, bytes(32)),
    "samples that were all left out": lambda p: p + section_bytes(9, samples_body(9, 63)),
    "65,536 samples": lambda p: p + section_bytes(9, samples_body(1 << 40, 0, *[1] * 65_536)),
    "a longer row": lambda p: p + section_bytes(11, bytes(9)),
    "a Gram matrix that is not finite": lambda p: (
        p + section_bytes(12, struct.pack("<3d", math.nan, math.inf, 1))
    ),
    "an audit": lambda p: p + section_bytes(13, bytes(77)),
    "an audit without distances": lambda p: p + section_bytes(13, bytes(45)),
    "a longer audit with codes of a later version": lambda p: p + section_bytes(13, b"\xff" * 78),
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
    "half an audit": lambda p: p + section_bytes(13, bytes(44)),
    "an audit with half its distances": lambda p: p + section_bytes(13, bytes(61)),
    "an empty Gram matrix": lambda p: p + section_bytes(12, b""),
    "a Gram matrix of one worker": lambda p: p + section_bytes(12, bytes(8)),
    "a Gram matrix of three workers": lambda p: p + section_bytes(12, bytes(48)),
    "a Gram matrix of 65 workers": lambda p: (
        patched(p, 44, struct.pack("<I", 65)) + section_bytes(12, bytes(8 * 2145))
    ),
    "a state of kind 0": lambda p: p + section_bytes(8, state_body(5, 0)),
    "a state of kind 6": lambda p: p + section_bytes(8, state_body(5, 6)),
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
    "kind 6": lambda p: patched(p, 6, b"\x06"),
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
    observer = observer_of([("p", 1, "")], sketch_size=64)
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
