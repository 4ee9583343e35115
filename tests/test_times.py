# SPDX-License-Identifier: Apache-2.0
"""Where time goes, of real workers of which one sleeps at a planted place."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import presum
from workers.times import CASES, SLOW, STEPS

WORLD = 3
PHASES = ("data", "forward", "backward", "optimizer", "rest", "reduction")
SLOW_CHECKS = ("slow-rank", "data-starved", "slow-node")
NEAR = 0.35  # of the sleep
# Where rank 1's sleep is to be found; None: nowhere.
EXPECTED = {
    "ddp-none": None,
    "ddp-data": "data",
    "ddp-forward": "forward",
    "ddp-backward": "backward",
    "ddp-optimizer": "optimizer",
    "micro-batches": "forward",
    "norm": "forward",
    "joined": "forward",
    "logged": "data",
    "evaluated": "rest",
    "fsdp-forward": "forward",
    "fsdp-backward": "backward",
    "by-hand": "forward",
}
SLEEPS_OF_A_STEP = {"micro-batches": 3}
SLEEPLESS = ("ddp-none", "ddp-none-again", "uneven")


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("times", WORLD).out


@pytest.fixture(scope="module")
def seconds(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "seconds.json").read_text())
    return found


def steps_of(run: Path, module: int = 0) -> pd.DataFrame:
    """Phases by step, a row of columns for each rank, but for the first steps."""
    frame = presum.load(run).workers
    frame = frame[(frame.model_index == module) & (frame.step > 1)]
    return frame.pivot(index="step", columns="rank", values=[f"time_{p}" for p in PHASES])


def longer_by_phase(times: pd.DataFrame) -> dict[str, float]:
    """What of each phase is the slow rank's alone. Other work of the machine only adds to a step:
    the shortest ones tell."""
    least = times.min()
    return {p: least[f"time_{p}"][SLOW] - least[f"time_{p}"].drop(SLOW).mean() for p in PHASES[:-1]}


def unexplained_wait(times: pd.DataFrame) -> float:
    """How much the others' waiting differs from what the slow rank took longer, in the step in
    which that is least."""
    own = sum(times[f"time_{p}"] for p in PHASES[:-1])
    waits = times["time_reduction"]
    longer = own[SLOW] - own.drop(columns=SLOW).mean(axis=1)
    waited = waits.drop(columns=SLOW).mean(axis=1) - waits[SLOW]
    return float((waited - longer).abs().min())


@pytest.mark.parametrize("case", EXPECTED)
def test_a_sleep_is_found_where_it_is(case: str, out: Path, seconds: dict[str, Any]) -> None:
    times = steps_of(out / case)
    sleep = seconds["sleep"] * SLEEPS_OF_A_STEP.get(case, 1)
    for phase, longer in longer_by_phase(times).items():
        expected = sleep if phase == EXPECTED[case] else 0
        assert abs(longer - expected) < NEAR * sleep, (phase, times.min())
    assert unexplained_wait(times) < NEAR * sleep, times


@pytest.mark.parametrize("case", [case for case in EXPECTED if EXPECTED[case]])
def test_the_slow_rank_is_named(case: str, out: Path) -> None:
    found = [one for one in presum.load(out / case).findings if one.check in SLOW_CHECKS]
    assert [one.ranks for one in found] == [[SLOW]], found
    assert found[0].values["phase"] == EXPECTED[case]


def test_long_batches_are_no_slow_machine(out: Path) -> None:
    every = presum.load(out / "uneven").findings
    (found,) = [one for one in every if one.check == "uneven-batches"]
    assert found.severity == "info"
    assert not [one for one in every if one.check in SLOW_CHECKS]
    assert found.values["correlation"] > 0.7
    assert "not a slow machine" in found.title


def test_a_healthy_run_names_nobody(out: Path) -> None:
    """But for what this machine may do to one of them, which is then true of it."""
    found = [presum.load(out / name).findings for name in ("ddp-none", "ddp-none-again")]
    assert [] in found, found


def test_two_models_do_not_wait_for_each_other_unseen(out: Path, seconds: dict[str, Any]) -> None:
    """The slow pass of one is own time of rank 1 in both, and a wait of the others in both."""
    sleep = seconds["sleep"]
    for module in (0, 1):
        times = steps_of(out / "adversarial", module)
        assert abs(sum(longer_by_phase(times).values()) - sleep) < NEAR * sleep, times.min()
        assert unexplained_wait(times) < NEAR * sleep, times


@pytest.mark.parametrize("case", CASES)
def test_phases_add_up_to_the_time_that_passed(
    case: str, out: Path, seconds: dict[str, Any]
) -> None:
    frame = presum.load(out / case).workers
    frame = frame[frame.model_index == 0]
    columns = [f"time_{p}" for p in PHASES]
    first = frame[frame.step == 0]
    assert first[columns].isna().all(axis=None), "nobody saw the first step begin"
    later = frame[frame.step > 0]
    assert later[columns].notna().all(axis=None)
    assert (later[columns] >= 0).all(axis=None)
    passed = seconds["cases"][case]
    for _, rows in later.groupby("rank"):
        total = rows[columns].to_numpy().sum()
        slept = 0 if case in SLEEPLESS else (STEPS - 1) * seconds["sleep"]
        assert 0.95 * slept < total < passed
        assert (rows.time_processor <= rows[columns].sum(axis=1) + 0.02).all()


def test_micro_batches_are_kept_apart(out: Path, seconds: dict[str, Any]) -> None:
    db = sqlite3.connect(out / "micro-batches" / "presum.db")
    rows = db.execute(
        "SELECT rank, micro_times FROM worker_step WHERE micro_times IS NOT NULL"
    ).fetchall()
    assert len(rows) == WORLD * (STEPS - 1)
    for rank, blob in rows:
        micro = np.frombuffer(blob, np.float32).reshape(-1, 3)
        assert len(micro) == 3
        if rank == SLOW:
            assert (micro[:, 1] >= 0.999 * seconds["sleep"]).all()
