# SPDX-License-Identifier: Apache-2.0
"""docs/runlog_format.md, held against a run log that the library writes.

Its tables are generated from the library's own lists of columns: with PRESUM_UPDATE_DOCS=1 in the
environment these tests write them anew. Queries are parsed from the Markdown.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from markdown_tables import code_blocks, hold_generated, number, rows_of, section, table_of
from observers import end_step, make_observer, report
from presum._core import (
    Aggregator,
    FingerprintKind,
    Observer,
    StateKind,
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
NAN_STEP = 6
LAYERS = ["model.layers.0", "model.layers.1", "head.w"]


@pytest.fixture(scope="module")
def run_log(tmp_path_factory: Any) -> Path:
    """Two segments: the first whole, the second with a worker that leaves early, and NaNs in a
    gradient and a loss."""
    folder: Path = tmp_path_factory.mktemp("docs") / "run"
    for segment in (1, 2):
        aggregator = Aggregator(str(folder))
        for replica in range(WORKERS):
            observer = make_observer(
                [(f"{layer}.w", 64, "") for layer in LAYERS],
                rank=replica,
                ranks=WORKERS,
                sketch_size=256,
                facts=[("torch", "2.13.0")],
            )
            steps = 8 if (segment, replica) == (2, 2) else STEPS
            packets = [step_packet(observer, segment, replica, step) for step in range(steps)]
            packets += [observer.note("planted note"), observer.goodbye(100 + replica)]
            for packet in (observer.hello(), *packets):
                aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))
        aggregator.close()
    return folder / "presum.db"


def step_packet(observer: Observer, segment: int, replica: int, step: int) -> bytes:
    random = np.random.default_rng([segment, replica, step])
    observer.begin_states()
    observer.state_sum(StateKind.PARAMETERS, 0, 7 if replica == 2 and step == 4 else 6)
    observer.begin_step(step)
    observer.fingerprint(FingerprintKind.SAMPLER_SEED, 40 + (replica == 1 and step >= 5))
    observer.samples([100 * step + 10 * replica + row for row in range(2)])
    observer.indices([step, replica])
    for index in range(len(LAYERS)):
        values = random.normal(0.5, 1.0 + replica, 64).astype(np.float32)
        if (segment, replica, step, index) == (2, 0, NAN_STEP, 0):
            values[0] = np.nan
        report(observer, index, values.tobytes(), "f32")
        if step % 5 == 0:
            report(observer, index, np.full(64, 0.5, np.float32).tobytes(), "f32", reduced=True)
    observer.loss(np.nan if (segment, replica, step) == (2, 1, 5) else 2 + replica, 1, 100)
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


def test_lists_in_a_row_are_laid_out_as_documented(db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT s.step, w.replica, w.micro, w.states FROM worker_step w JOIN step s "
        "ON s.id = w.step_id WHERE s.segment = 1 AND s.step IN (3, 4)"
    ).fetchall()
    assert len(rows) == 2 * WORKERS
    hashes = {}
    for step, replica, micro, states in rows:
        read = list(struct.iter_unpack("<ddQQdI", micro))
        assert [one[:4] for one in read] == [(2 + replica, 1, 100, 0), (3, 2, 50, 0)]
        assert all(math.isnan(weight) for *_, weight, _ in read)
        if states is not None:
            ((_group, kind, value),) = struct.iter_unpack("<QIQ", states)
            assert kind == StateKind.PARAMETERS.value
            hashes[step, replica] = value
    # The first rank's, and what differs from it.
    assert hashes.keys() == {(3, 0), (4, 0), (4, 2)}
    assert hashes[3, 0] == hashes[4, 0] != hashes[4, 2]


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
    entry = r'\{k\w+, "(\w+)", k(\w+), (\w+)\}'
    command = [sys.executable, "-m", "presum", "explain", "--format", "json"]
    declared = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    checks = {kind: check["check"] for check in declared for kind in check["fingerprints"]}
    words = {"Match": "must match", "Differ": "must differ", "Noise": "noise"}
    meanings, rows = meanings_of_kinds(), []
    for name, expectation, real in re.findall(entry, " ".join(source.split())):
        kind = str(FingerprintKind[name.upper()].value)
        value = "f64" if real == "true" else "u64"
        rows.append(
            [kind, f"`{name}`", value, words[expectation], checks.get(name, ""), meanings[kind]]
        )
    assert [int(kind) for kind, *_ in rows] == sorted(kind.value for kind in FingerprintKind)
    header = "| kind | name | value | expectation | check | meaning |"
    hold_generated(DOCUMENT, "kinds of fingerprints", table_of(header, rows))


def test_a_file_has_the_tables_and_views_of_the_library(db: sqlite3.Connection) -> None:
    objects = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')")
    stored = {("table", name) for name, *_ in stored_tables()}
    assert set(objects) == stored | {("view", name) for name, *_ in shown_tables()}
    for name, _, columns in stored_tables():
        info = db.execute(f'PRAGMA table_info("{name}")').fetchall()
        declared = [(column, kind) for _, column, kind, *_ in info]
        assert declared == [(column, kind.upper()) for column, kind, *_ in columns], name
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
    assert {row[0] for row in workers} == {0, 1, 2}
    assert {row[0] for row in layers} == set(LAYERS)
    found = {(row[1], row[2]): row for row in findings}
    nan = found["nonfinite-gradient", "[0]"]
    assert nan[0] == "critical" and nan[3] <= NAN_STEP <= nan[4]
    assert all(title and remedy for *_, title, remedy in findings)
    assert ("nonfinite-gradient", 0) in {(check, rank) for check, rank, _ in blamed}


def test_findings_and_checks_are_written_as_documented(db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT severity, check_id, also, ranks, hosts, evidence FROM findings")
    for severity, check, also, ranks, hosts, evidence in rows.fetchall():
        assert severity in ("info", "warning", "critical")
        assert check not in json.loads(also)
        assert json.loads(ranks) == sorted(set(json.loads(ranks)))
        assert set(json.loads(hosts)) <= {"host"}
        for seen in json.loads(evidence):
            assert seen.keys() == {"check", "ranks", "sentence", "values"}
    states = db.execute("SELECT check_id, min(state), max(state) FROM check_state GROUP BY 1")
    checks = {check: (low, high) for check, low, high in states}
    assert len(checks) == 47
    assert all(0 <= low <= high <= 3 for low, high in checks.values())
    assert checks["nonfinite-gradient"] == (0, 1)  # found in the second segment, passed before


def test_every_measured_column_has_its_formula(db: sqlite3.Connection) -> None:
    metrics = set(re.findall(r"`(\w+)`", METRICS))
    step = {column[1] for column in db.execute("PRAGMA table_info(step)")}
    named = {"id", "segment", "model_index", "dp_group", "step"}
    named |= {"workers", "workers_expected", "workers_left_out"}
    assert step - named <= metrics, sorted(step - named - metrics)
    assert {"cosine_to_others", "grad_norm", "grad_max", "nonfinite", "loss", "tokens"} <= metrics
