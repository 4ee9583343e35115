# SPDX-License-Identifier: Apache-2.0
"""Where time goes, of real workers of which one sleeps at a planted place."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presum
from workers.times import CASES, SLEEP, SLOW, STEPS

WORLD = 3
PHASES = ("data", "forward", "backward", "optimizer", "rest", "reduction")
SLOW_CHECKS = ("slow-worker", "data-starved", "slow-node")
NEAR = 0.35  # of the sleep: two cores, three ranks
# Where rank 1's sleep is to be found; None: nowhere.
EXPECTED = {
    "ddp-none": None,
    "ddp-data": "data",
    "ddp-forward": "forward",
    "ddp-loss": "forward",
    "ddp-backward": "backward",
    "ddp-rest": "rest",
    "ddp-optimizer": "optimizer",
    "micro-batches": "forward",
    "norm": "forward",
    "each-reduced": "forward",
    "two-views": "forward",
    "joined": "forward",
    "logged": "data",
    "evaluated": "rest",
    "fsdp-forward": "forward",
    "fsdp-backward": "backward",
    "by-hand": "forward",
}
SLEEPS_OF_A_STEP = {"micro-batches": 3, "two-views": 2}


@pytest.fixture(scope="module")
def out(launch: Any, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("times")
    done = launch("times", WORLD, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def milliseconds(run: Path, module: int = 0) -> dict[int, dict[str, float]]:
    """By rank and phase the median over steps, but for the first one."""
    frame = presum.load(run).workers
    frame = frame[(frame.module == module) & (frame.step > 1)]
    return {
        rank: {p: 1e3 * float(np.median(rows[f"time_{p}"])) for p in PHASES}
        for rank, rows in frame.groupby("rank")
    }


@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", EXPECTED)
def test_a_sleep_is_found_where_it_is(case: str, out: Path) -> None:
    times = milliseconds(out / case)
    others = [rank for rank in times if rank != SLOW]
    phase, sleep = EXPECTED[case], 1e3 * SLEEP * SLEEPS_OF_A_STEP.get(case, 1)
    for p in PHASES[:-1]:
        longer = times[SLOW][p] - np.mean([times[rank][p] for rank in others])
        expected = sleep if p == phase else 0
        assert abs(longer - expected) < NEAR * sleep, (p, times)
    waited = np.mean([times[rank]["reduction"] for rank in others]) - times[SLOW]["reduction"]
    assert abs(waited - (sleep if phase else 0)) < NEAR * sleep, times


@pytest.mark.parametrize("case", [case for case in EXPECTED if EXPECTED[case]])
def test_the_slow_rank_is_named(case: str, out: Path) -> None:
    found = [one for one in presum.load(out / case).findings if one.check in SLOW_CHECKS]
    assert [one.ranks for one in found] == [[SLOW]], found
    assert found[0].evidence["phase"] == EXPECTED[case]


def test_long_batches_are_no_slow_machine(out: Path) -> None:
    every = presum.load(out / "uneven").findings
    (found,) = [one for one in every if one.check == "uneven-batches"]
    assert found.severity == "info"
    assert not [one for one in every if one.check in SLOW_CHECKS]
    assert found.evidence["correlation"] > 0.7
    assert "not a slow machine" in found.title


@pytest.mark.skipif("shared-core" not in CASES, reason="one processor")
def test_a_processor_that_is_taken_away_is_told_apart(out: Path) -> None:
    (found,) = [
        one for one in presum.load(out / "shared-core").findings if one.check in SLOW_CHECKS
    ]
    assert (found.check, found.ranks) == ("slow-worker", [SLOW])
    assert found.evidence["phase"] == "processor"
    assert "waiting for a processor" in found.title


def test_a_healthy_run_names_nobody(out: Path) -> None:
    """But for what this machine may do to one of them, which is then true of it."""
    found = [presum.load(out / name).findings for name in ("ddp-none", "ddp-none-again")]
    assert [] in found, found


def test_two_models_do_not_wait_for_each_other_unseen(out: Path) -> None:
    """The slow pass of one is own time of rank 1 in both, and a wait of the others in both."""
    for module in (0, 1):
        times = milliseconds(out / "adversarial", module)
        others = [rank for rank in times if rank != SLOW]
        own = {rank: sum(times[rank][p] for p in PHASES[:-1]) for rank in times}
        longer = own[SLOW] - np.mean([own[rank] for rank in others])
        waited = np.mean([times[rank]["reduction"] for rank in others])
        assert abs(longer - 1e3 * SLEEP) < NEAR * 1e3 * SLEEP, times
        assert abs(waited - times[SLOW]["reduction"] - 1e3 * SLEEP) < NEAR * 1e3 * SLEEP, times


@pytest.mark.parametrize("case", CASES)
def test_phases_add_up_to_the_time_that_passed(case: str, out: Path) -> None:
    frame = presum.load(out / case).workers
    frame = frame[frame.module == 0]
    columns = [f"time_{p}" for p in PHASES]
    first = frame[frame.step == 0]
    assert first[columns].isna().all(axis=None), "nobody saw the first step begin"
    later = frame[frame.step > 0]
    assert later[columns].notna().all(axis=None)
    assert (later[columns] >= 0).all(axis=None)
    passed = json.loads((out / "seconds.json").read_text())[case]
    for _, rows in later.groupby("rank"):
        total = rows[columns].to_numpy().sum()
        slept = 0 if case.startswith("ddp-none") else (STEPS - 1) * SLEEP
        assert 0.95 * slept < total < passed
        assert (rows.time_processor <= rows[columns].sum(axis=1) + 0.02).all()


def test_micro_batches_are_kept_apart(out: Path) -> None:
    db = sqlite3.connect(out / "micro-batches" / "presum.db")
    rows = db.execute(
        "SELECT rank, micro_times FROM worker_step WHERE micro_times IS NOT NULL"
    ).fetchall()
    assert len(rows) == WORLD * (STEPS - 1)
    for rank, blob in rows:
        micro = np.frombuffer(blob, np.float32).reshape(-1, 3)
        assert len(micro) == 3
        if rank == SLOW:
            assert (micro[:, 1] >= SLEEP).all()
