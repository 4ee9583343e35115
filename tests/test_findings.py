# SPDX-License-Identifier: Apache-2.0
"""Findings of real DDP workers: where they are said, and how a preflight ends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import presum

WORLD = 4
PREFLIGHT = 8


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("findings", WORLD).out


def result(out: Path, case: str, rank: int) -> Any:
    return json.loads((out / f"{case}.{rank}.json").read_text())


def test_a_clean_run_is_consistent(out: Path) -> None:
    run = presum.load(out / "clean")
    assert [f for f in run.findings if f.severity != "info"] == []
    passed = set(run.checks[run.checks.state == "passed"].check)
    assert {"duplicate-data", "parameter-desync", "sampler-mismatch", "nonfinite-loss"} <= passed
    assert "consistent after 30 steps" in result(out, "clean", 0)["terminal"]
    assert result(out, "clean", 1)["terminal"] == ""


def test_a_critical_finding_is_said_once_and_names_worker_and_step(out: Path) -> None:
    (found, *_) = presum.load(out / "nan").findings
    assert (found.check, found.severity, found.ranks) == ("nonfinite-gradient", "critical", [1])
    assert found.first_step == 12
    terminal = result(out, "nan", 0)["terminal"]
    assert terminal.count(found.remedy) == 1
    assert "inconsistent after 30 steps" in terminal


def test_on_finding_is_called_on_rank_0_and_not_on_the_training_thread(out: Path) -> None:
    told = result(out, "nan", 0)
    assert "nonfinite-gradient" in told["checks"]
    assert len(told["checks"]) == len(set(told["checks"]))
    assert told["threads"] == ["presum-aggregator"]
    assert [result(out, "nan", rank)["checks"] for rank in range(1, WORLD)] == [[]] * 3


def test_quiet_says_nothing(out: Path) -> None:
    assert result(out, "nan-quiet", 0)["terminal"] == ""
    assert "nonfinite-gradient" in result(out, "nan-quiet", 0)["checks"]


def test_on_finding_runs_on_the_training_thread_where_asked(out: Path) -> None:
    told = result(out, "same", 0)
    assert told["checks"][0] == "duplicate-data"
    assert told["ranks"][0] == [0, 1, 2, 3]
    assert told["threads"] == ["MainThread"]


def test_a_preflight_ends_every_rank_with_the_same_code(out: Path) -> None:
    case = "preflight-bad"
    assert [result(out, case, rank)["code"] for rank in range(WORLD)] == [1] * WORLD
    assert presum.load(out / case).steps.step.tolist() == list(range(PREFLIGHT))
    with closing(sqlite3.connect(out / case / "presum.db")) as db:
        ended = db.execute("SELECT preflight_exit_code, closed FROM segment").fetchall()
    assert ended == [(1, 1)]
    assert "exit code 1" in result(out, case, 0)["terminal"]
