# SPDX-License-Identifier: Apache-2.0
"""Real DDP workers, every configuration: metrics against float64, parameters bit for bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from pathlib import Path
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

WORLDS = (2, 3, 4, 8)
CASES = [(world, c.name) for world in WORLDS for c in configurations_for(world)]
BY_NAME = {c.name: c for c in CONFIGURATIONS}
OTHER_SUM = [c.name for c in CONFIGURATIONS if c.comm_hook.endswith("power")]
SKETCH = 4096


@pytest.fixture(scope="module")
def results_of(launch: Any, tmp_path_factory: Any) -> Callable[[int], dict[str, Any]]:
    """All that so many workers did, in one launch."""

    @functools.cache
    def results(world: int) -> dict[str, Any]:
        out = tmp_path_factory.mktemp(f"matrix{world}")
        done = launch("matrix", world, out)
        assert done.returncode == 0, done.stderr[-4000:]
        assert "presum:" not in done.stderr
        names = [configuration.name for configuration in configurations_for(world)]
        runs = {name: presum.load(out / name) for name in [*names, "join"]}
        expected = {name: json.loads(Path(out / f"{name}.json").read_text()) for name in runs}
        return {"world": world, "runs": runs, "expected": expected, "names": names}

    return results


@pytest.fixture(params=WORLDS)
def results(request: Any, results_of: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    return results_of(request.param)


def cases_of(names: Collection[str]) -> Any:
    """Runs a test for these configurations, with every number of workers that they are for."""
    cases = [(world, name) for world, name in CASES if name in names]
    return pytest.mark.parametrize("case", cases, ids=[f"{name}-{world}" for world, name in cases])


every_case = cases_of(BY_NAME)
Case = tuple[int, str]


def column(results: dict[str, Any], name: str, key: str) -> np.ndarray:
    return np.array([step[key] for step in results["expected"][name]["expected"]])


@every_case
def test_parameters_are_bit_identical_with_and_without_presum(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    name, results = case[1], results_of(case[0])
    expected = results["expected"][name]
    assert expected["plain"] == expected["watched"]


@every_case
def test_every_step_of_every_worker_is_there(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    name, results = case[1], results_of(case[0])
    steps = results["runs"][name].steps
    assert steps.step.tolist() == list(range(STEPS))
    assert (steps.workers == results["world"]).all()
    if name not in OTHER_SUM:
        assert steps.reduced_norm.notna().sum() == STEPS // REDUCED_EVERY
        assert (steps.reduced_disagrees == 0).all()


@every_case
def test_nobody_is_accused(case: Case, results_of: Callable[[int], dict[str, Any]]) -> None:
    name, results = case[1], results_of(case[0])
    worst = [found for found in results["runs"][name].findings if found.severity != "info"]
    assert not worst, worst


def test_under_join_workers_without_input_take_part_in_no_metric(results: dict[str, Any]) -> None:
    world, run = results["world"], results["runs"]["join"]
    assert results["expected"]["join"]["plain"] == results["expected"]["join"]["watched"]
    assert run.steps.step.tolist() == list(range(STEPS))
    assert (run.steps.workers == world).all()
    without = run.workers[run.workers.step >= STEPS - run.workers["rank"]]
    assert len(without) == world * (world - 1) // 2
    assert without.grad_norm.isna().all() and without.loss.isna().all()
    assert not [found for found in run.findings if found.severity != "info"]


@every_case
def test_losses_and_norms_match_the_oracle(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    name, results = case[1], results_of(case[0])
    steps, workers = results["runs"][name].steps, results["runs"][name].workers
    losses, norms = column(results, name, "losses"), column(results, name, "norms")
    world = results["world"]
    np.testing.assert_allclose(workers.loss.to_numpy().reshape(-1, world), losses, rtol=1e-5)
    np.testing.assert_allclose(workers.grad_norm.to_numpy().reshape(-1, world), norms, rtol=1e-5)
    scale = losses.mean(1)
    np.testing.assert_allclose(steps.loss_mean, scale, rtol=1e-5)
    assert np.abs(steps.loss_std - losses.std(1)).max() <= 1e-5 * scale.max()
    assert np.abs(steps.loss_range - np.ptp(losses, axis=1)).max() <= 1e-5 * scale.max()
    np.testing.assert_allclose(steps.grad_norm_mean, norms.mean(1), rtol=1e-5)
    assert np.abs(steps.grad_norm_std - norms.std(1)).max() <= 1e-5 * norms.max()


@cases_of(BY_NAME.keys() - set(OTHER_SUM))
def test_consistency_is_exact_where_the_reduced_norm_is_known(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    name, results = case[1], results_of(case[0])
    measured = results["runs"][name].steps.consistency.to_numpy()
    known = ~np.isnan(measured)
    assert known.sum() == STEPS // REDUCED_EVERY
    expected = column(results, name, "consistency")
    limit = 2e-3 if BY_NAME[name].lossy else 1e-4
    assert np.abs(measured - expected)[known].max() <= limit


@every_case
def test_mean_cosine_matches_the_oracle(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    name, results = case[1], results_of(case[0])
    steps = results["runs"][name].steps
    error = steps.cosine_mean.to_numpy() - column(results, name, "cosine_mean")
    limit = 1.2 / np.sqrt(SKETCH) if results["world"] == 2 else 1e-2
    assert np.sqrt((error**2).mean()) <= limit
    if BY_NAME[name].lossy:
        return
    exact = steps.cosine_source.isin(["exact", "total-norm"]).to_numpy()
    if exact.any():
        assert np.sqrt((error[exact] ** 2).mean()) <= (1e-5 if results["world"] == 2 else 2e-3)


def test_pairs_and_intervals_cover_the_oracle(results: dict[str, Any]) -> None:
    world = results["world"]
    upper = np.triu_indices(world, 1)
    errors, covered = [], []
    for name in results["names"]:
        run, matrices = results["runs"][name], column(results, name, "cosines")
        steps, means = run.steps, column(results, name, "cosine_mean")
        covered.append((steps.cosine_low - 1e-6 <= means) & (means <= steps.cosine_high + 1e-6))
        errors += [run.cosines(step)[upper] - matrices[step][upper] for step in range(STEPS)]
    assert np.sqrt((np.concatenate(errors) ** 2).mean()) <= 1.2 / np.sqrt(SKETCH)
    assert np.concatenate(covered).mean() >= 0.93


@cases_of({"plain"})
def test_groups_add_up_to_the_whole_gradient(
    case: Case, results_of: Callable[[int], dict[str, Any]]
) -> None:
    run = results_of(case[0])["runs"]["plain"]
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
