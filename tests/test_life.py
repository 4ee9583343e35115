# SPDX-License-Identifier: Apache-2.0
"""What a program lets go of is freed as without presum, and its recording ends in order."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import presum
from workers.life import STEPS

WORLD = 2


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("life", WORLD, silent=True).out


@pytest.fixture(params=range(WORLD))
def found(request: Any, out: Path) -> Any:
    return json.loads((out / f"life.{request.param}.json").read_text())


def test_models_optimizers_and_monitors_are_freed_by_reference_count(found: Any) -> None:
    assert all(alive == [] for alive in found["alive"].values()), found["alive"]


def test_a_module_that_is_wrapped_again_has_the_hooks_of_its_last_wrapper(
    found: Any, out: Path
) -> None:
    assert found["hooks"] == [1] * 6
    steps = presum.load(out / "wrapped-again").steps
    assert steps.groupby("model_index").step.count().tolist() == [STEPS] * 6
    assert (steps.workers == WORLD).all()


def test_monitors_that_are_closed_leave_no_descriptor_thread_or_recorder(found: Any) -> None:
    for counts in found["closed"].values():
        assert max(counts) - counts[0] <= 2, found["closed"]


def test_every_closed_monitor_left_a_whole_segment(out: Path) -> None:
    steps = presum.load(out / "closed").steps
    assert steps.groupby("segment").step.count().tolist() == [1] * 25
    assert (steps.workers == WORLD).all()


@pytest.mark.parametrize(
    ("run", "steps"), [("dropped-monitor", 10), ("open", STEPS), ("cycle", STEPS)]
)
def test_the_recording_of_what_is_gone_is_whole(run: str, steps: int, out: Path) -> None:
    loaded = presum.load(out / run)
    assert loaded.steps.step.tolist() == list(range(steps))
    assert (loaded.steps.workers == WORLD).all()
    with closing(sqlite3.connect(out / run / "presum.db")) as db:
        assert db.execute("SELECT closed FROM segment").fetchall() == [(1,)]
