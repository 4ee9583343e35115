# SPDX-License-Identifier: Apache-2.0
"""Real DDP workers, every configuration: metrics against float64, parameters bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presum
from workers.launch import texts
from workers.matrix import CONFIGURATIONS, REDUCED_EVERY, STEPS

NAMES = [c.name for c in CONFIGURATIONS]
SKETCH = 4096


@pytest.fixture(scope="module", params=[2, 4, 8])
def results(request: Any, launch: Any, tmp_path_factory: Any) -> dict[str, Any]:
    world = request.param
    out = tmp_path_factory.mktemp(f"matrix{world}")
    done = launch("matrix", world, out)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "presum:" not in done.stderr
    print(f"\n{world} workers on {texts()[0]}")
    runs = {name: presum.load(out / name) for name in NAMES}
    expected = {name: json.loads(Path(out / f"{name}.json").read_text()) for name in NAMES}
    return {"world": world, "runs": runs, "expected": expected}


def column(results: dict[str, Any], name: str, key: str) -> np.ndarray:
    return np.array([step[key] for step in results["expected"][name]["expected"]])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_bit_identical_with_and_without_presum(
    results: dict[str, Any], name: str
) -> None:
    expected = results["expected"][name]
    assert expected["plain"] == expected["watched"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_every_worker_is_there(results: dict[str, Any], name: str) -> None:
    steps = results["runs"][name].steps
    assert steps.step.tolist() == list(range(STEPS))
    assert (steps.workers == results["world"]).all()
    assert steps.reduced_norm.notna().sum() == STEPS // REDUCED_EVERY
    assert (steps.reduced_disagrees == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_norms_match_the_oracle(results: dict[str, Any], name: str) -> None:
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


@pytest.mark.parametrize("name", NAMES)
def test_consistency_is_exact_where_the_reduced_norm_is_known(
    results: dict[str, Any], name: str
) -> None:
    measured = results["runs"][name].steps.consistency.to_numpy()
    known = ~np.isnan(measured)
    assert known.sum() == STEPS // REDUCED_EVERY
    expected = column(results, name, "consistency")
    assert np.abs(measured - expected)[known].max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_mean_cosine_matches_the_oracle(results: dict[str, Any], name: str) -> None:
    steps = results["runs"][name].steps
    error = steps.cosine_mean.to_numpy() - column(results, name, "cosine_mean")
    limit = 1.2 / np.sqrt(SKETCH) if results["world"] == 2 else 1e-2
    assert np.sqrt((error**2).mean()) <= limit
    exact = steps.cosine_source.isin(["exact", "total-norm"]).to_numpy()
    assert np.sqrt((error[exact] ** 2).mean()) <= (1e-5 if results["world"] == 2 else 2e-3)


def test_pairs_and_intervals_cover_the_oracle(results: dict[str, Any]) -> None:
    world = results["world"]
    upper = np.triu_indices(world, 1)
    errors, covered = [], []
    for name in NAMES:
        run, matrices = results["runs"][name], column(results, name, "cosines")
        steps, means = run.steps, column(results, name, "cosine_mean")
        covered.append((steps.cosine_low - 1e-6 <= means) & (means <= steps.cosine_high + 1e-6))
        errors += [run.cosines(step)[upper] - matrices[step][upper] for step in range(STEPS)]
    assert np.sqrt((np.concatenate(errors) ** 2).mean()) <= 1.2 / np.sqrt(SKETCH)
    assert np.concatenate(covered).mean() >= 0.93


def test_groups_add_up_to_the_whole_gradient(results: dict[str, Any]) -> None:
    run = results["runs"]["plain"]
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
