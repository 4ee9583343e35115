# SPDX-License-Identifier: Apache-2.0
"""What is told of trainings that share a RUN: whether one goes on from another, and how many steps
there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from programs_started import presum_command
from workers.segments import LEFT, SAVED, STEPS, WORKERS

ANEW = "detectors begin anew: its parameters are none that presum saw saved or left"


def goes_on(step: int) -> str:
    return (
        f"goes on from step {step} of segment 1: detectors keep what they learned in {step} steps"
    )


# What the second segment is said to be, the steps of the first, of both, and of the statistics.
CASES = {
    "independent": (f"segment 2: {ANEW}", STEPS, 2 * STEPS, STEPS),
    "resumed": (f"segment 2 {goes_on(SAVED)}", LEFT, SAVED + STEPS, None),
    "ended": (f"segment 2 {goes_on(STEPS)}", STEPS, 2 * STEPS, 2 * STEPS),
}


def lines_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "presum:" in line or "statistics" in line]


@pytest.mark.parametrize("name", CASES)
def test_a_training_says_what_it_continues(launch: Any, tmp_path: Path, name: str) -> None:
    outcome, first, both, watched = CASES[name]
    done = launch("segments", WORKERS, tmp_path, name)
    assert done.returncode == 0, done.stderr[-4000:]
    run = tmp_path / name
    told = lines_of(done.stderr)
    begin = told.index(f"presum: continues a run of {first} steps as segment 2 in {run}")
    assert told[begin + 1] == f"presum: {outcome}"
    assert told[begin + 2].startswith(f"presum: consistent after {STEPS} steps")
    assert sum("continues" in line for line in told) == 1, "on the rank that records"
    needs = [line for line in told[begin:] if "statistics need" in line]
    assert bool(needs) == (watched is not None)
    if watched is not None:
        assert f"and saw {watched}" in needs[0]
    check_commands(run, outcome, both, needs)


def check_commands(run: Path, outcome: str, steps: int, needs: list[str]) -> None:
    found = presum_command("findings", run).stdout
    assert f"\n{steps} steps, 2 of 2 workers, 2 segments" in found
    assert f"\n{outcome}\n" in found
    assert f"\n{run.name}: {outcome}\n" in presum_command("summary", run).stdout
    assert (
        json.loads(presum_command("summary", run, "--format", "json").stdout)[0]["steps"] == steps
    )
    checked = presum_command("check", run).stdout
    assert f" {steps} steps, 2 of 2 workers" in checked
    assert all(line.split("facts only: ")[1] in checked for line in needs)


def test_steps_of_two_process_groups_are_not_added(launch: Any, tmp_path: Path) -> None:
    done = launch("segments", 4, tmp_path, "groups")
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"presum: consistent after {STEPS} steps" in done.stderr
    assert "continues" not in done.stderr
    assert (
        f"\n{STEPS} steps, 4 of 4 workers" in presum_command("findings", tmp_path / "groups").stdout
    )
