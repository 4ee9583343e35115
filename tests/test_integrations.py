# SPDX-License-Identifier: Apache-2.0
"""FSDP2, loops that reduce by hand, and frameworks: float64 oracle, parameters bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presum
from workers.integrations import STEPS, rows_for

SKETCH = 4096
WORLDS = (2, 4)
CASES = [(world, name) for world in WORLDS for name in rows_for(world)]


@pytest.fixture(scope="module")
def outs(launch: Any) -> dict[int, Path]:
    return {world: launch("integrations", world, silent=True).out for world in WORLDS}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def case(request: Any, outs: dict[int, Path]) -> dict[str, Any]:
    world, name = request.param
    found = json.loads((outs[world] / f"{name}.json").read_text())
    run = presum.load(outs[world] / name)
    members = len(found["expected"][0]["norms"])
    return {"name": name, "run": run, "world": members, **found}


def column(case: dict[str, Any], key: str) -> np.ndarray:
    return np.array([step[key] for step in case["expected"]])


def workers(case: dict[str, Any], key: str) -> np.ndarray:
    """Of the data-parallel group of rank 0."""
    found = case["run"].workers
    return found[found["rank"] < case["world"]][key].to_numpy().reshape(-1, case["world"])


def test_parameters_are_bit_identical_with_and_without_presum(case: dict[str, Any]) -> None:
    assert case["plain"] == case["watched"]


def test_losses_and_norms_match_the_oracle(case: dict[str, Any]) -> None:
    np.testing.assert_allclose(workers(case, "loss"), column(case, "losses"), rtol=1e-5)
    np.testing.assert_allclose(workers(case, "grad_norm"), column(case, "norms"), rtol=1e-5)
    assert len(case["expected"]) == STEPS


def test_cosines_match_the_oracle(case: dict[str, Any]) -> None:
    steps = case["run"].steps
    found = steps[steps["dp_group"] == 0] if "dp_group" in steps else steps
    error = found.cosine_mean.to_numpy()[:STEPS] - column(case, "cosine_mean")
    assert np.sqrt((error**2).mean()) <= 1.2 / np.sqrt(SKETCH)


def test_nobody_is_accused(case: dict[str, Any]) -> None:
    worst = [found for found in case["run"].findings if found.severity != "info"]
    assert not worst, worst
