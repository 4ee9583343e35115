# SPDX-License-Identifier: Apache-2.0
"""What FSDP2's reductions make of each layer, on real workers (docs/metrics.md, "Layer by
layer")."""

from __future__ import annotations

import json
from typing import Any

import pytest
from verdicts import found_of_training

import presum
from presum.parallel.fsdp import CAN_STAND_IN
from workers.shards import CASES, NORM_AT

HEALTHY = [name for name, case in CASES.items() if "broken" not in case]
BROKEN = {  # check, ranks, of the title
    "kept": ("no-reduction", (0, 1, 2, 3), "nothing was reduced"),
    "one-layer-summed": ("reduction-scale", (0, 1, 2, 3), "in one layer: the sum instead"),
    "one-layer-of-hsdp-without-one": (
        *("reduced-gradient-mismatch", (2,)),
        "nothing of rank 2 in one layer",
    ),
    "infinite": ("nonfinite-gradient", (0, 1, 2, 3), "the reduction of the step before"),
}


@pytest.fixture(scope="module")
def runs(launch: Any) -> dict[str, Any]:
    out = launch("shards", 4, silent=True).out
    norms = {name: json.loads((out / f"{name}.json").read_text()) for name in ("fsdp", "hsdp")}
    return {name: presum.load(out / name) for name in CASES} | {"norms": norms}


# Gloo's reduce-scatter in torch 2.8 gives the sum where the mean is asked for.
gives_means = pytest.mark.skipif(not CAN_STAND_IN, reason="torch 2.8")


@pytest.mark.skipif(CAN_STAND_IN, reason="of torch 2.8")
@pytest.mark.parametrize("name", ["fsdp", "bf16"])
def test_what_torch_2_8_makes_of_means_is_told(runs: dict[str, Any], name: str) -> None:
    (finding,) = found_of_training(runs[name])
    assert (finding.check, finding.severity) == ("reduction-scale", "critical")
    assert "the sum instead of the mean" in finding.title


@gives_means
@pytest.mark.parametrize("name", HEALTHY)
def test_a_sound_reduction_has_no_finding(runs: dict[str, Any], name: str) -> None:
    assert found_of_training(runs[name]) == []


@gives_means
@pytest.mark.parametrize("name", ["fsdp", "hsdp", "bf16", "divided-by-one"])
def test_a_sound_reduction_is_judged(runs: dict[str, Any], name: str) -> None:
    checks = runs[name].checks.set_index("check").state
    of_reduction = ["no-reduction", "reduction-scale", "reduced-gradient-mismatch"]
    assert set(checks[of_reduction]) == {"passed"}


def test_where_parts_are_not_side_by_side_it_is_not_possible(runs: dict[str, Any]) -> None:
    checks = runs["another-dimension"].checks.set_index("check").state
    assert checks["reduction-scale"] == "not-possible"


@pytest.mark.parametrize("name", ["fsdp", "hsdp"])
def test_every_worker_has_the_norm_of_the_whole(runs: dict[str, Any], name: str) -> None:
    workers = runs[name].workers.query(f"step == {NORM_AT}")
    (norm,) = set(workers.reduced_norm)
    assert norm == pytest.approx(runs["norms"][name], rel=1e-6)


@pytest.mark.skipif(not CAN_STAND_IN, reason="needs torch 2.9")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_named(runs: dict[str, Any], name: str) -> None:
    check, ranks, title = BROKEN[name]
    finding = next(f for f in runs[name].findings if f.check == check)
    assert (tuple(finding.ranks), finding.severity) == (ranks, "critical")
    assert title in finding.title
    assert finding.first_step == 0
    assert name != "infinite" or "reduced-gradient-mismatch" in finding.also
