# SPDX-License-Identifier: Apache-2.0
"""Real DDP workers, every configuration: metrics against float64, parameters bit for bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import presum
from workers.matrix import (
    CONFIGURATIONS,
    REDUCED_EVERY,
    STEPS,
    configurations_for,
)

WORLDS = (2, 3, 8)
CASES = [(world, c.name) for world in WORLDS for c in configurations_for(world)]
BY_NAME = {c.name: c for c in CONFIGURATIONS}
OTHER_SUM = [c.name for c in CONFIGURATIONS if c.comm_hook.endswith("power")]
SKETCH = 4096
Case = dict[str, Any]


@pytest.fixture(scope="module")
def cases_of(launch: Any) -> Callable[[int], dict[str, Case]]:
    """All that so many workers did, in one launch."""

    @functools.cache
    def cases(world: int) -> dict[str, Case]:
        out = launch("matrix", world, silent=True).out
        return {
            name: {"name": name, "world": world, "run": presum.load(out / name)}
            | json.loads((out / f"{name}.json").read_text())
            for name in (*(c.name for c in configurations_for(world)), "join")
        }

    return cases


@pytest.fixture(params=CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def case(request: Any, cases_of: Callable[[int], dict[str, Case]]) -> Case:
    world, name = request.param
    return cases_of(world)[name]


@pytest.fixture(params=WORLDS)
def cases(request: Any, cases_of: Callable[[int], dict[str, Case]]) -> dict[str, Case]:
    """Of one number of workers."""
    return cases_of(request.param)


def column(case: Case, key: str) -> np.ndarray:
    return np.array([step[key] for step in case["expected"]])


def test_parameters_are_bit_identical_with_and_without_presum(case: Case) -> None:
    assert case["plain"] == case["watched"]


def test_every_step_of_every_worker_is_there(case: Case) -> None:
    steps = case["run"].steps
    assert steps.step.tolist() == list(range(STEPS))
    assert (steps.workers == case["world"]).all()
    if case["name"] not in OTHER_SUM:
        assert steps.reduced_norm.notna().sum() == STEPS // REDUCED_EVERY
        assert (steps.reduced_disagrees == 0).all()


def test_nobody_is_accused(case: Case) -> None:
    worst = [found for found in case["run"].findings if found.severity != "info"]
    assert not worst, worst


def test_under_join_workers_without_input_take_part_in_no_metric(cases: dict[str, Case]) -> None:
    join = cases["join"]
    world, run = join["world"], join["run"]
    assert join["plain"] == join["watched"]
    assert run.steps.step.tolist() == list(range(STEPS))
    assert (run.steps.workers == world).all()
    without = run.workers[run.workers.step >= STEPS - run.workers["rank"]]
    assert len(without) == world * (world - 1) // 2
    assert without.grad_norm.isna().all() and without.loss.isna().all()
    assert not [found for found in run.findings if found.severity != "info"]


def test_losses_and_norms_match_the_oracle(case: Case) -> None:
    steps, workers = case["run"].steps, case["run"].workers
    losses, norms, world = column(case, "losses"), column(case, "norms"), case["world"]
    np.testing.assert_allclose(workers.loss.to_numpy().reshape(-1, world), losses, rtol=1e-5)
    np.testing.assert_allclose(workers.grad_norm.to_numpy().reshape(-1, world), norms, rtol=1e-5)
    scale = losses.mean(1)
    np.testing.assert_allclose(steps.loss_mean, scale, rtol=1e-5)
    assert np.abs(steps.loss_std - losses.std(1)).max() <= 1e-5 * scale.max()
    assert np.abs(steps.loss_range - np.ptp(losses, axis=1)).max() <= 1e-5 * scale.max()
    np.testing.assert_allclose(steps.grad_norm_mean, norms.mean(1), rtol=1e-5)
    assert np.abs(steps.grad_norm_std - norms.std(1)).max() <= 1e-5 * norms.max()


def test_consistency_is_exact_where_the_reduced_norm_is_known(case: Case) -> None:
    if case["name"] in OTHER_SUM:
        pytest.skip("its reduced gradient is no sum")
    measured = case["run"].steps.consistency.to_numpy()
    known = ~np.isnan(measured)
    assert known.sum() == STEPS // REDUCED_EVERY
    limit = 2e-3 if BY_NAME[case["name"]].lossy else 1e-4
    assert np.abs(measured - column(case, "consistency"))[known].max() <= limit


def test_mean_cosine_matches_the_oracle(case: Case) -> None:
    steps, pair = case["run"].steps, case["world"] == 2
    error = steps.cosine_mean.to_numpy() - column(case, "cosine_mean")
    assert np.sqrt((error**2).mean()) <= (1.2 / np.sqrt(SKETCH) if pair else 1e-2)
    exact = steps.cosine_source.isin(["exact", "total-norm"]).to_numpy()
    if exact.any() and not BY_NAME[case["name"]].lossy:
        assert np.sqrt((error[exact] ** 2).mean()) <= (1e-5 if pair else 2e-3)


def test_pairs_and_intervals_cover_the_oracle(cases: dict[str, Case]) -> None:
    errors, covered = [], []
    for case in (case for name, case in cases.items() if name != "join"):
        upper = np.triu_indices(case["world"], 1)
        run, matrices = case["run"], column(case, "cosines")
        steps, means = run.steps, column(case, "cosine_mean")
        covered.append((steps.cosine_low - 1e-6 <= means) & (means <= steps.cosine_high + 1e-6))
        errors += [run.cosines(step)[upper] - matrices[step][upper] for step in range(STEPS)]
    assert np.sqrt((np.concatenate(errors) ** 2).mean()) <= 1.2 / np.sqrt(SKETCH)
    assert np.concatenate(covered).mean() >= 0.93


def test_groups_add_up_to_the_whole_gradient(cases: dict[str, Case]) -> None:
    run = cases["plain"]["run"]
    by_group = run.groups.assign(square=run.groups.grad_norm**2)
    total = by_group.groupby(["step", "rank"]).square.sum() ** 0.5
    np.testing.assert_allclose(total.to_numpy(), run.workers.grad_norm.to_numpy(), rtol=1e-5)
    assert set(run.groups.group) == {
        "embed.weight",
        "layers.layers.0",
        "optional.weight",
        "optional.bias",
        "head.weight",
        "head.bias",
    }
