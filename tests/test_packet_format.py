# SPDX-License-Identifier: Apache-2.0
"""docs/packet_format.md and its vectors, held against the library and tests/packet_decoder.py."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from markdown_tables import number, rows_of, section
from observers import DTYPES, audit_of, end_step, make_observer, report
from packet_decoder import HEADER, HEADER_FIELDS, decode, mix64, name_hash, splitmix64
from presum._core import (
    FingerprintKind,
    SnapshotKind,
    Snapshots,
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
def test_fingerprint_vectors_hold_in_the_library(dtype: str, elements: str, expected: str) -> None:
    observer = make_observer([("w", 1, "")])
    observer.begin_step(0)
    report(observer, 0, elements_of(elements, dtype), dtype)
    total = decode(end_step(observer)).sections[2]
    (found,) = struct.unpack_from("<Q", total, 24)
    assert found == mix64(number(expected) ^ name_hash("w"))


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
        assert splitmix64(0x70726573756D6670 + int(index)) & 0xFFFFFFFF == number(key)


def test_name_hash_vectors_hold_here_and_in_the_library() -> None:
    rows = vectors("name_hash")
    assert len(rows) >= 3
    for name, expected in rows:
        assert name_hash(name) == number(expected)
        observer = make_observer([("w", 1, name)])
        observer.begin_step(0)
        (group,) = struct.unpack_from("<Q", decode(end_step(observer)).sections[3])
        assert group == number(expected)


def test_names_and_default_groups() -> None:
    rows = vectors("names")
    assert len(rows) >= 4
    for name, canonical, group in rows:
        assert canonical_name(name) == canonical
        names = decode(make_observer([(name, 9, "")]).hello()).sections[18]
        identity, elements, length = struct.unpack_from("<QQH", names)
        assert (identity, elements) == (name_hash(group), 9)
        assert names[18 : 18 + length].decode() == group


def test_sketch_vectors_hold_in_the_library() -> None:
    rows = vectors("sketch")
    assert len(rows) >= 4
    for step, parameter, size, seed, i, bucket, sign in rows:
        observer = make_observer([(parameter, 1, "")], sketch_size=int(size))
        observer.begin_step(int(step))
        assert observer.seed(0) == number(seed)
        report(observer, 0, struct.pack("<f", 0.0) * int(i) + struct.pack("<f", 3.0), "f32")
        sketch = np.frombuffer(decode(end_step(observer)).sections[4], "<f4")
        assert {b: x for b, x in enumerate(sketch) if x} == {int(bucket): float(f"{sign}3")}


def row_of(text: str) -> list[int]:
    if found := re.fullmatch(r"c for c = 0 \S (\d+)", text):
        return list(range(int(found[1]) + 1))
    return [number(word) for word in text.split()]


def test_row_hash_vectors_hold_in_the_library() -> None:
    rows = vectors("row_hash")
    assert {row[0] for row in rows} == {"u8", "u16", "u32", "u64"}
    for kind, text, mask_text, expected in rows:
        row = np.array([row_of(text)], f"u{SIZES[kind]}")
        mask = np.array([row_of(mask_text)], "u1") if mask_text else None
        assert hash_rows(row, mask) == [number(expected)], text


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


def big_step(groups: int, *, micros: int, states: int, samples: int) -> tuple[int, int]:
    """Size of a step's packet with a default sketch and a reduced gradient, and of its bounds."""
    parameters = [(f"layers.{i}.w", 4, "") for i in range(groups)]
    observer = make_observer(parameters, sketch_size=4096, buffers=parameters)
    observer.begin_states()
    for index in range(states):
        observer.state_sum(StateKind(1 + index // groups), index % groups, 1)
    observer.begin_step(1)
    for index in range(groups):
        report(observer, index, struct.pack("<f", 1), "f32")
        report(observer, index, struct.pack("<f", 1), "f32", reduced=True)
    for _ in range(micros):
        observer.loss(1, 1, 1)
    for kind in FingerprintKind:
        observer.fingerprint(kind, 1)
    observer.samples(list(range(samples)))
    observer.indices(list(range(samples)))
    return len(end_step(observer)), (16 << 10) + 64 * groups + (10 << 8)


@pytest.mark.parametrize("groups", [1, 40])
def test_a_packet_is_small(groups: int) -> None:
    promise = section(PACKET_FORMAT, "# Packet format")
    assert "16 KiB + 64 bytes a layer + 2.5 KiB" in " ".join(promise.split())
    size, bound = big_step(groups, micros=16, states=groups, samples=27)
    assert bound - 700 < size + 8 + len(decode(timed_step(16)).sections[TIMES]) <= bound


def test_every_section_the_library_writes_is_documented() -> None:
    observer = make_observer([("p", 1, "")], ranks=2, sketch_size=64)
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
    snapshots = Snapshots(observer)
    snapshots.begin(SnapshotKind.SAVED, optimizer_steps=3.0, learning_rate=0.5)
    snapshots.generator(1, 11)
    snapshots.parameter(0, values.ctypes.data, 1, DTYPES["f32"], first=0, shard=0, in_order=True)
    packets = [observer.hello(), end_step(observer), observer.goodbye(0)]
    packets.append(snapshots.packet())
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
            observer.pass_ends(1.0, None, 1.0, 1.0, 0.0, math.nan, False)
        observer.optimizer_begins()
        observer.optimizer_steps(0)
        ended = observer.take_ended()
        assert ended is not None
        packets.append(ended.packet())
    assert TIMES not in decode(packets[0]).sections
    return packets[1]
