# SPDX-License-Identifier: Apache-2.0
"""Real trainings whose sums presum makes: one result for every number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from verdicts import found_of_training

import presum
from programs_started import presum_command
from workers.reduction import CASES

QUICK = tuple(name for name in ("plain", "exact", "exact-mean", "fsdp-exact") if name in CASES)
WORLDS = {1: QUICK, 2: (*QUICK, "exact-uneven", "exact-always"), 4: QUICK, 8: ("exact",)}
OTHERS = tuple(name for name in CASES if name not in WORLDS[2])


def trained(launch: Any, world: int, names: tuple[str, ...]) -> Path:
    return launch("reduction", world, *names, silent=True).out


@pytest.fixture(scope="module")
def folders(launch: Any) -> dict[int, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRESUM_SALT", "tests")
        return {world: trained(launch, world, names) for world, names in WORLDS.items()}


def parameters(folder: Path, name: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / f"{name}.pt")
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "plain"])
def test_parameters_are_the_same_bits_for_1_2_4_and_8_workers(
    folders: dict[int, Path], name: str
) -> None:
    alone = parameters(folders[1], name)
    others = [world for world, names in WORLDS.items() if name in names and world > 1]
    assert len(others) >= 2
    assert all(same(parameters(folders[world], name), alone) for world in others)


def test_without_it_they_are_not(folders: dict[int, Path]) -> None:
    alone = parameters(folders[1], "plain")
    assert not any(same(parameters(folders[world], "plain"), alone) for world in (2, 4))


def test_with_one_leaf_each_all_cosines_are_exact_at_every_step(folders: dict[int, Path]) -> None:
    run = presum.load(folders[8] / "exact-run")
    assert set(run.steps.cosine_source) == {"gram"}
    assert (run.steps.cosine_low == run.steps.cosine_high).all()
    assert dict(run.facts[["key", "value"]].values)["reduction"] == "exact"


@pytest.mark.parametrize("name", [name for name in QUICK if name != "plain"])
def test_recorded_gradients_are_the_sums_of_their_leaves(
    folders: dict[int, Path], name: str
) -> None:
    """One worker's own gradient is the reduced one; of more, the mean has the norm it ought to."""
    alone = presum.load(folders[1] / f"{name}-run").steps
    alone = alone[alone.reduced_norm.notna()]
    if len(alone):  # FSDP2 shards the reduced gradient
        assert alone.reduced_norm.to_numpy() == pytest.approx(alone.grad_norm_mean.to_numpy(), 1e-7)
    for world in (1, 2, 4):
        assert found_of_training(presum.load(folders[world] / f"{name}-run")) == []


@pytest.mark.deep
@pytest.mark.parametrize("name", OTHERS)
def test_every_configuration_is_invariant(launch: Any, name: str) -> None:
    found = [parameters(trained(launch, world, (name,)), name) for world in (1, 2, 4)]
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_workers_may_bring_different_numbers_of_micro_batches(folders: dict[int, Path]) -> None:
    truth = parameters(folders[4], "exact-mean")
    assert same(parameters(folders[2], "exact-uneven"), truth)
    # A loss divided by a power of two is as good as a mean over leaves.
    assert same(truth, parameters(folders[8], "exact"))
    # Passes that were each reduced have the same leaves.
    assert same(parameters(folders[2], "exact-always"), truth)


def compared(folders: dict[int, Path], name: str, exit_code: int) -> Any:
    a, b = (folders[world] / f"{name}-run" for world in (1, 2))
    done = presum_command("compare", a, b, "--format", "json")
    assert done.returncode == exit_code, done.stderr
    return json.loads(done.stdout)


def test_runs_of_other_numbers_of_workers_are_identical(folders: dict[int, Path]) -> None:
    assert compared(folders, "exact-mean", 0)["agreement"] == (
        "identical for 1 and 2 ranks, bit for bit, at 50 common steps: samples, parameters, "
        "reduction at 2 steps, final parameters; not compared: random generators, token weight, "
        "loss, local gradient"
    )
    (model,) = compared(folders, "plain", 1)["models"]
    assert (model["other_worlds"], model["first_number"]) == (False, "reduction")


def test_workers_that_are_not_alike(launch: Any) -> None:
    out = launch("reducing", 2).out
    found = [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert all("attached with different microbatch_mean" in one["disagree"] for one in found)
    assert found[0]["join"] == [1.0] and found[1]["join"] == [1.0, 4.0]
    assert found[1]["join_with_leaves"] == (3 + 5 + 4 + 6 + 7) / 5
    assert found[1]["join_with_zeroed_leaves"] == (8 + 4) / 2
    assert all("has given up leaves" in one["join_on_top"] for one in found)
