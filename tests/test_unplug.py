# SPDX-License-Identifier: Apache-2.0
"""Whatever breaks around presum, training ends with the same parameters and in time."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from verdicts import found_of_training

import presum
from programs_started import presum_command

WORLD = 3
KILLED = 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    """Of a launch with a planted kill."""
    return launch("unplug", WORLD, code=KILLED).out


def said(out: Path, rank: int, case: str) -> list[str]:
    """What was logged on a rank during a case."""
    log = (out / f"log{rank}.txt").read_text()
    part = log.split(f"== {case}\n")[1].split("== ")[0]
    return [line for line in part.splitlines() if line.startswith("presum:")]


@pytest.mark.parametrize(
    "case", ["healthy", "folder", "store", "silent", "collector", "collectors"]
)
def test_training_is_the_same_and_ends_in_time(out: Path, case: str) -> None:
    for rank in range(WORLD):
        result = json.loads((out / f"{case}.{rank}.json").read_text())
        assert result["plain"] == result["watched"]
        # Where no goodbye comes, or none can be sent, close() waits 1.5 s for it. A machine that is
        # busy with other things makes both trainings longer.
        waits = case in ("store", "silent")
        assert result["with"] < (4.0 if waits else 2.0) + 5 * result["seconds"], (rank, result)


def test_nothing_is_said_when_nothing_is_wrong(out: Path) -> None:
    assert [said(out, rank, "healthy") for rank in range(WORLD)] == [[], [], []]
    assert len(presum.load(out / "healthy").steps) == 40


def test_a_run_folder_that_cannot_be_made_is_said_once_by_rank_0(out: Path) -> None:
    (line,) = said(out, 0, "folder")
    assert "cannot create run folder" in line
    assert said(out, 1, "folder") == said(out, 2, "folder") == []


def test_workers_say_that_the_store_is_gone_and_rank_0_keeps_its_own_steps(out: Path) -> None:
    assert [len(said(out, rank, "store")) for rank in range(WORLD)] == [0, 1, 1]
    workers = presum.load(out / "store").workers
    assert len(workers[workers["rank"] == 0]) == 40


def test_with_a_worker_that_never_sends_nothing_is_called_consistent(out: Path) -> None:
    steps = presum.load(out / "silent").steps
    assert len(steps) == 40
    assert (steps.workers == 2).all()
    assert (steps.workers_expected == 3).all()
    assert not found_of_training(presum.load(out / "silent")), "its packets may be on their way"
    checked = presum_command("check", out / "silent")
    assert checked.returncode == 2 and "2 of 3 ranks" in checked.stdout


def test_an_exception_in_the_collector_switches_that_rank_off_and_says_why(out: Path) -> None:
    (line,) = said(out, 1, "collector")
    assert "planted failure" in line
    workers = presum.load(out / "collector").workers
    assert len(workers[workers["rank"] == 1]) == 20
    assert len(workers[workers["rank"] == 0]) == 40


def test_where_every_collector_fails_the_run_is_not_called_consistent(out: Path) -> None:
    for rank in range(WORLD):
        (line,) = said(out, rank, "collectors")
        assert "planted failure" in line
    assert len(presum.load(out / "collectors").steps) == 20
    checked = presum_command("check", out / "collectors")
    assert checked.returncode == 2 and "planted failure" in checked.stdout


def test_a_killed_worker_leaves_a_whole_run_log(out: Path) -> None:
    steps = presum.load(out / "killed").steps
    assert steps.step.tolist() == list(range(20))
    assert steps.workers.tolist() == [3, 3, 3] + [2] * 17


def test_a_run_of_one_step_is_whole(out: Path) -> None:
    assert presum.load(out / "one-step").steps.workers.tolist() == [3]


def test_a_killed_aggregator_leaves_what_was_committed(launch: Any) -> None:
    out = launch("unplug", 1, code=KILLED).out
    steps = presum.load(out / "aggregator-killed").steps
    assert steps.step.tolist() == list(range(20))
    assert steps.cosine_mean.isna().all()
