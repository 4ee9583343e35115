# SPDX-License-Identifier: Apache-2.0
"""Who records where rank 0 does not, and that nobody waits in a hurry."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from verdicts import found_of_training

import presum
from workers.meeting import STEPS

WORLD = 3


@pytest.fixture(scope="module")
def started(launch: Any) -> tuple[Path, str]:
    return launch("meeting", WORLD)


@pytest.mark.parametrize("run", ["short", "without-rank-0"])
def test_where_rank_0_does_not_train_another_rank_records(
    started: tuple[Path, str], run: str
) -> None:
    out, stderr = started
    steps = presum.load(out / run).steps
    assert steps.step.tolist() == list(range(STEPS)) and (steps.workers == 2).all()
    assert stderr.count(f"rank 0 has not attached; rank 1 records into {out / run}") == 1


def test_what_cannot_be_served_is_said_at_once_and_nobody_is_called_missing(
    started: tuple[Path, str],
) -> None:
    out, stderr = started
    reason = "planted: no port; nothing more is recorded of other ranks"
    assert f"presum: rank 0: {reason}" in stderr
    assert f"presum: the record in {out / 'no-server'} is incomplete: {reason}" in stderr
    run = presum.load(out / "no-server")
    assert len(run.steps) == STEPS and (run.steps.workers == 1).all()
    assert not found_of_training(run)


def test_who_waits_asks_less_and_less_often(started: tuple[Path, str]) -> None:
    out, _ = started
    for rank in (1, 2):
        sessions = json.loads((out / f"meeting.{rank}.json").read_text())
        longest = max(sessions, key=lambda asked: asked[-1] - asked[0])
        pauses = [later - earlier for earlier, later in pairwise(longest)]
        # A loaded machine asks less often, never more.
        assert len(pauses) <= 8 and max(pauses, default=1.0) > 0.3


def test_who_had_no_part_in_a_training_before_joins_the_next(started: tuple[Path, str]) -> None:
    out, stderr = started
    steps = presum.load(out / "joined-later").steps
    assert steps.groupby("segment").workers.agg(list).tolist() == [[2] * STEPS, [3] * STEPS]
    assert "came too late" not in stderr and "could not be sent" not in stderr


def test_a_model_that_some_ranks_do_not_have_is_one_of_its_own(started: tuple[Path, str]) -> None:
    out, _ = started
    steps = presum.load(out / "extra-model").steps
    by_model = steps.groupby("workers_expected").workers.agg(list).to_dict()
    assert by_model == {2: [2], 3: [3] * STEPS}
    assert steps.groupby("workers_expected").model_index.nunique().tolist() == [1, 1]
