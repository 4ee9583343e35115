# SPDX-License-Identifier: Apache-2.0
"""The loss that is recorded is the one that the program logs, however its framework makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presum
from workers.logged import STEPS, TRAININGS

RANKS = 3  # not a power of two: no division by it is exact
OF_TOKENS = ("trainer", "trainer-smoothed", "trainer-measuring", "sft")


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("logged", RANKS, silent=True).out


@pytest.mark.parametrize("name", TRAININGS)
def test_the_recorded_loss_is_the_logged_one(out: Path, name: str) -> None:
    logged = json.loads((out / "logged.json").read_text())[name]
    workers = presum.load(out / name).workers
    losses = workers.loss.to_numpy().reshape(-1, RANKS)
    # Where the tokens of all ranks divide it, each rank's loss counts by its own.
    weights = workers.weight.to_numpy().reshape(-1, RANKS)
    if name == "trainer-own-tokens":
        weights = np.ones_like(weights)
    assert len(losses) == len(logged) >= STEPS
    np.testing.assert_allclose(np.average(losses, 1, weights), logged, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_rank_with_a_short_batch_has_a_loss_as_the_others(out: Path, name: str) -> None:
    workers = presum.load(out / name).workers
    tokens = workers.tokens.to_numpy().reshape(-1, RANKS)
    losses = workers.loss.to_numpy().reshape(-1, RANKS)
    assert np.ptp(tokens, 1).max() > 8
    assert np.ptp(losses, 1).max() < 0.2  # nobody has learnt anything yet
