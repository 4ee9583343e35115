# SPDX-License-Identifier: Apache-2.0
"""What is told of trainings that share a RUN: whether one goes on from another, and how many steps
there are."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def launched(launch: Any) -> tuple[Path, str]:
    return launch("segments", WORKERS)


@pytest.mark.parametrize("name", CASES)
def test_a_training_says_what_it_continues(launched: tuple[Path, str], name: str) -> None:
    outcome, first, both, watched = CASES[name]
    run = launched[0] / name
    said = launched[1].split(f"== {name}\n")[1].split("== ")[0].splitlines()
    told = [line for line in said if "presum:" in line or "statistics" in line]
    begin = told.index(f"presum: continues a run of {first} steps as segment 2 in {run}")
    assert told[begin + 1] == f"presum: {outcome}"
    assert told[begin + 2].startswith(f"presum: consistent after {STEPS} steps")
    assert sum("continues" in line for line in told) == 1, "on the rank that records"
    needs = [line for line in told[begin:] if "statistics need" in line]
    assert [f"and saw {watched}" in line for line in needs] == [True] * (watched is not None)
    found = presum_command("findings", run).stdout
    assert f"\n{both} steps, 2 of 2 workers, 2 segments" in found
    assert f"\n{outcome}\n" in found


def test_steps_of_two_process_groups_are_not_added(launch: Any) -> None:
    out, stderr = launch("segments", 4)
    assert f"presum: consistent after {STEPS} steps" in stderr
    assert "continues" not in stderr
    assert f"\n{STEPS} steps, 4 of 4 workers" in presum_command("findings", out / "groups").stdout
