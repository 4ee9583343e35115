# SPDX-License-Identifier: Apache-2.0
"""docs/runlog_format.md, held against a run log that the library writes.

Its tables are generated from the library's own lists of columns: with PRESUM_UPDATE_DOCS=1 in the
environment these tests write them anew. Queries are parsed from the Markdown.
"""

from __future__ import annotations

import json
import math
import random
import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from markdown_tables import code_blocks, hold_generated, number, rows_of, section, table_of
from observers import end_step, observer_of, report, report_state
from packet_decoder import (
    M64,
    fingerprint,
    mix64,
    name_hash,
    siphash,
)
from presum._core import (
    Aggregator,
    FingerprintKind,
    Observer,
    shown_tables,
    stamp,
    stored_tables,
)

SOURCES = Path(__file__).parents[1]
DOCS = SOURCES / "docs"
DOCUMENT = DOCS / "runlog_format.md"
RUNLOG_FORMAT = DOCUMENT.read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")


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
            observer = observer_of(PARAMETERS, replica=replica, replicas=WORKERS, sketch_size=256)
            packets = [observer.hello()]
            for step in range(STEPS):
                if segment == 2 and replica == 2 and step >= 8:
                    continue
                packets.append(step_packet(observer, segment, replica, step, source))
            if segment == 2:
                report_state(observer, 1, 0, struct.pack("<f", replica), 4)
                packets += [observer.note("planted note"), observer.goodbye(100 + replica)]
            for packet in packets:
                aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment, 1))
        aggregator.close()
    return folder / "presum.db"


SAMPLER_SEED, BATCH = FingerprintKind.SAMPLER_SEED, FingerprintKind.BATCH


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


Table = tuple[str, str, list[tuple[str, str, str, str, str]]]
HEADER = "| column | type | unit | meaning |"
NEVER = ("", "never")  # what `unknown` is of a column that is never NULL


def documented(kind: str, tables: list[Table], known: set[tuple[str, ...]]) -> str:
    """A heading, a sentence and a table of columns for each; of columns that are known, the names.
    Adds to what is known.
    """
    parts = []
    for name, meaning, columns in tables:
        rows, above = [], []
        for row in columns:
            column, stored_as, unit, text, unknown = row
            if row in known:
                above.append(f"`{column}`")
                continue
            null = "" if unknown in NEVER else f"; NULL: {unknown}"
            rows.append([f"`{column}`", stored_as, unit, text + null])
        parts += [f"### {kind} `{name}`", meaning]
        parts += [f"As above: {', '.join(above)}."] if above else []
        parts += [table_of(HEADER, rows)] if rows else []
        known |= set(columns)
    return "\n\n".join(parts)


def test_the_tables_of_columns_are_those_of_the_library() -> None:
    known: set[tuple[str, ...]] = set()
    hold_generated(DOCUMENT, "stored tables", documented("Table", stored_tables(), known))
    hold_generated(DOCUMENT, "views", documented("View", shown_tables(), known))


def test_the_codes_are_those_that_the_views_name(db: sqlite3.Connection) -> None:
    aliases = {"s": "step", "w": "worker_step"}
    of_view = {
        "findings": "finding",
        "checks": "check_state",
        "audits": "audit",
        "stalled_ranks": "stalled_rank",
    }
    rows = []
    for view, sql in db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"):
        for alias, column, body in re.findall(r'CASE (\w+)\."(\w+)" (WHEN \d.*?) END', sql):
            names = [*re.findall(r"THEN '([^']+)'", body), *re.findall(r"ELSE '([^']+)'", body)]
            table = of_view[view] if alias == "t" else aliases[alias]
            codes = ", ".join(f"{code} {name}" for code, name in enumerate(names))
            rows.append([f"`{table}.{column}`", codes])
    assert len(rows) == 10
    hold_generated(DOCUMENT, "codes", table_of("| column | codes |", rows))


def meanings_of_kinds() -> dict[str, str]:
    """The comments in the header, by the number of the kind."""
    header = (SOURCES / "include/presum/fingerprint.h").read_text(encoding="utf-8")
    entries = re.findall(r"^  k\w+ =\s+(\d+),[ \t]*(?://(.*))?$", header, re.MULTILINE)
    return {kind: text.strip() for kind, text in entries}


def test_the_kinds_of_fingerprints_are_those_of_the_library() -> None:
    source = (SOURCES / "src/records/fingerprint_kinds.cc").read_text(encoding="utf-8")
    entry = r'\{k\w+, "(\w+)", k(\w+), (\w+), "([\w-]*)"\}'
    words = {"Match": "must match", "Differ": "must differ", "Noise": "noise"}
    meanings, rows = meanings_of_kinds(), []
    for name, expectation, real, check in re.findall(entry, " ".join(source.split())):
        kind = str(FingerprintKind[name.upper()].value)
        value = "f64" if real == "true" else "u64"
        rows.append([kind, f"`{name}`", value, words[expectation], check, meanings[kind]])
    assert [int(kind) for kind, *_ in rows] == sorted(kind.value for kind in FingerprintKind)
    header = "| kind | name | value | expectation | check | meaning |"
    hold_generated(DOCUMENT, "kinds of fingerprints", table_of(header, rows))


def test_a_file_has_the_tables_and_views_of_the_library(db: sqlite3.Connection) -> None:
    objects = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')")
    stored = {("table", name) for name, *_ in stored_tables()}
    assert set(objects) == stored | {("view", name) for name, *_ in shown_tables()}
    for name, _, columns in stored_tables():
        info = db.execute(f'PRAGMA table_info("{name}")').fetchall()
        declared = [(column, kind.lower()) for _, column, kind, *_ in info]
        assert declared == [(column, kind) for column, kind, *_ in columns], name
    for name, _, columns in shown_tables():
        info = db.execute(f'PRAGMA table_info("{name}")').fetchall()
        assert [column for _, column, *_ in info] == [column for column, *_ in columns], name


def test_what_is_never_unknown_is_never_null(db: sqlite3.Connection) -> None:
    for name, _, columns in [*stored_tables(), *shown_tables()]:
        for column, *_, unknown in columns:
            if unknown in NEVER:
                nulls = db.execute(f'SELECT count(*) FROM "{name}" WHERE "{column}" IS NULL')
                assert nulls.fetchone() == (0,), f"{name}.{column}"


QUERIES = code_blocks(section(RUNLOG_FORMAT, "## Example queries"), "sql")


def test_example_queries_answer(db: sqlite3.Connection) -> None:
    answers = [db.execute(query).fetchall() for query in QUERIES]
    metrics, workers, layers, findings, blamed = answers
    assert [row[0] for row in metrics] == list(range(STEPS))  # the last segment only
    assert all(a[2] <= b[2] for a, b in pairwise(workers))
    assert {row[0] for row in workers} == {10, 11, 12}
    assert {row[0] for row in layers} == {"model.layers.0", "model.layers.1", "head.w"}
    found = {(row[1], row[2]): row for row in findings}
    nan = found["nonfinite-gradient", "[10]"]
    # A warning: the optimiser of these workers made no step with it.
    assert nan[0] == "warning" and nan[3] <= NAN_STEP <= nan[4]
    assert all(title and remedy for *_, title, remedy in findings)
    assert ("nonfinite-gradient", 10) in {(check, rank) for check, rank, _ in blamed}


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
    assert len(checks) == 42
    assert all(0 <= low <= high <= 3 for low, high in checks.values())
    assert checks["nonfinite-gradient"] == (0, 1)  # found in the second segment, passed before


def test_fingerprints_are_stored_where_they_change(db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT replica, step, value FROM fingerprint WHERE segment = 1 AND kind = ?",
        (SAMPLER_SEED,),
    )
    assert rows.fetchall() == [(0, 0, 40), (1, 0, 40), (1, 5, 41), (2, 0, 40)]


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
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")  # no salt of the user's
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


def test_blobs_are_laid_out_as_documented(db: sqlite3.Connection) -> None:
    identity, cosines, workers = db.execute(
        "SELECT id, cosines, workers FROM step WHERE segment = 1 AND step = 1"
    ).fetchone()
    assert len(np.frombuffer(cosines, "<f4")) == workers * (workers - 1) // 2
    for replica, micro, weight in db.execute(
        "SELECT replica, micro, weight FROM worker_step WHERE step_id = ?", (identity,)
    ):
        batches = list(struct.iter_unpack("<ddQ", micro))
        assert batches == [(2 + replica, 1, 100), (3, 2, 50)]
        assert weight == 3
    norms = db.execute("SELECT norms, maxima FROM group_step WHERE step_id = ?", (identity,))
    for norm, largest in norms:
        assert len(np.frombuffer(norm, "<f4")) == len(np.frombuffer(largest, "<f4")) == workers
    for step, lengths in [(3, [20, None, None]), (4, [20, None, 20])]:
        states = db.execute(
            "SELECT length(w.states) FROM worker_step w JOIN step s ON s.id = w.step_id "
            "WHERE s.segment = 1 AND s.step = ? ORDER BY w.replica",
            (step,),
        )
        assert [length for (length,) in states] == lengths, "stored once where equal"
    finals = db.execute("SELECT replica, optimizer_steps, states FROM final_state").fetchall()
    for replica, steps, words in finals:
        group, of, value = struct.unpack("<QIQ", words)
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
    assert db.execute("SELECT count(*) FROM note").fetchone() == (3,)


def test_every_measured_column_has_its_formula(db: sqlite3.Connection) -> None:
    metrics = set(re.findall(r"`(\w+)`", METRICS))
    step = {column[1] for column in db.execute("PRAGMA table_info(step)")}
    named = {"id", "segment", "module", "shard", "step"}
    named |= {"workers", "workers_expected", "workers_left_out"}
    assert step - named <= metrics, sorted(step - named - metrics)
    assert {"cosine_to_others", "grad_norm", "grad_max", "nonfinite", "loss", "tokens"} <= metrics
