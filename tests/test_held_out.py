# SPDX-License-Identifier: Apache-2.0
"""What presum says of trainings that nothing of it was tuned on (docs/faults.md, "Held out")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verdicts import found_of_training

import presum
from workers.held_out import PROGRAMS

pytestmark = pytest.mark.deep

WORLD = 4
DUE = {"tripled-loss": ("rank-outlier", [2]), "same-data": ("duplicate-data", [0, 1])}


def grave(folder: Path) -> list[tuple[str, list[int]]]:
    findings = found_of_training(presum.load(folder))
    return [(f.check, list(f.ranks)) for f in findings if f.severity != "info"]


def test_held_out_trainings_are_quiet_and_their_faults_are_named(launch: Any) -> None:
    out = launch("held_out", WORLD).out
    found = {
        (name, fault): grave(out / name / fault) for name in PROGRAMS for fault in ("none", *DUE)
    }
    for (name, fault), said in found.items():
        print(f"{name:18} {fault:14} {said}")
    assert not [one for one in found.items() if one[0][1] == "none" and one[1]]
    missed = [key for key, said in found.items() if key[1] in DUE and DUE[key[1]] not in said]
    assert not missed
