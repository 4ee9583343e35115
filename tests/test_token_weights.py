# SPDX-License-Identifier: Apache-2.0
"""What one target token weighs, in trainings whose losses are divided by different counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verdicts import OF_THE_CLOCK

import presum
from workers.token_weights import CASES, SMALLER, STEPS

WORLDS = (2, 4)
TWICE = "all ranks, and the reduction divides by the number of ranks once more"
# The evidence of each case's warning.
WARNINGS = {
    "divided-twice": TWICE,
    "divided-twice-pixels": TWICE,
    "divided-twice-fsdp2": TWICE,
    "divided-twice-reduced-often": TWICE,
    "last-micro-batch": "the last micro-batch",
    "step-before": "the update before",
    "reported": TWICE,
}
INFORMED = ("means", "means-fsdp2", "undivided", "own-tokens")
OTHERS = ("smaller-window", "one-rank-undivided", "hidden")
QUIET = sorted({*CASES} - {*WARNINGS, *INFORMED, *OTHERS, "smaller-window-by-its-size"})


@pytest.fixture(scope="module", params=WORLDS)
def world(request: Any) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def out(launch: Any, world: int) -> Path:
    return launch("token_weights", world).out  # type: ignore[no-any-return]


def found_in(run: Path, severity: str = "warning") -> Any:
    """The only finding with this severity; all alarms are warnings of token-weight."""
    findings = found_in_training(run)
    alarms = [one for one in findings if one.severity != "info"]
    assert all((one.check, one.severity) == ("token-weight", "warning") for one in alarms), alarms
    (found,) = [one for one in findings if one.severity == severity]
    return found


def found_in_training(run: Path) -> list[Any]:
    return [one for one in presum.load(run).findings if one.check not in OF_THE_CLOCK]


def evidence(finding: Any) -> Any:
    return finding.evidence[0]["values"]


@pytest.mark.parametrize("name", QUIET)
def test_equal_weights_are_fine(out: Path, name: str) -> None:
    run = presum.load(out / name)
    found = found_in_training(out / name)
    assert [one.title for one in found if one.check == "token-weight"] == []
    assert [one.title for one in found if one.severity != "info"] == []
    assert run.checks.set_index("check").state["token-weight"] == "passed"


@pytest.mark.parametrize("name", WARNINGS)
def test_a_divisor_of_other_tokens_is_named(out: Path, world: int, name: str) -> None:
    found = found_in(out / name)
    assert evidence(found)["tokens_of"] == WARNINGS[name]
    assert list(found.ranks) == list(range(world))
    if WARNINGS[name] == TWICE:
        assert evidence(found)["total"] == pytest.approx(1 / world, rel=1e-5)


@pytest.mark.parametrize("name", INFORMED)
def test_unequal_weights_are_information(out: Path, name: str) -> None:
    findings = found_in_training(out / name)
    assert {one.severity for one in findings} == {"info"}
    shown = [one for one in findings if one.check == "token-weight"]
    assert any("weight_ratio" in evidence(one) for one in shown)
    undivided = [one for one in shown if "equals" in evidence(one)]
    assert bool(undivided) == (name == "undivided")


def test_a_smaller_window_that_is_divided_by_the_full_number(out: Path) -> None:
    def found_in_the_middle_of_a_pass(name: str) -> list[Any]:
        findings = found_in_training(out / name)
        assert {one.severity for one in findings} == {"info"}
        return [one for one in findings if "divided_by" in evidence(one)]

    (found,) = found_in_the_middle_of_a_pass("smaller-window")
    assert (found.first_step, found.last_step) == (SMALLER, SMALLER)
    assert evidence(found) == {"micro_batches": 1, "divided_by": 4, "total": "0.25"}
    assert not found_in_the_middle_of_a_pass("smaller-window-by-its-size")


def test_accelerate_divides_the_smaller_last_window_by_the_full_number(out: Path) -> None:
    assert evidence(found_in(out / "accelerate")) == {
        "micro_batches": 2,
        "divided_by": 4,
        "total": "0.5",
    }


def test_a_rank_with_another_factor_is_named(out: Path, world: int) -> None:
    found = found_in(out / "one-rank-undivided")
    assert found.first_step <= 5
    assert list(found.ranks) == ([1] if world > 2 else [0, 1])
    assert evidence(found)["weight_ratio"] == pytest.approx(2 if world > 2 else 0.5, rel=1e-5)


def test_a_hidden_loss_function_is_named(out: Path) -> None:
    assert [one.title for one in found_in_training(out / "hidden") if one.severity != "info"] == []
    row = presum.load(out / "hidden").checks.set_index("check").loc["token-weight"]
    assert row.state == "not-possible"
    assert row.reason.startswith("The loss is computed inside HiddenBackward: ")


def test_the_log_has_targets_and_weights(out: Path, world: int) -> None:
    rows = presum.load(out / "scaled").workers
    assert len(rows) == STEPS * world
    total = (rows.targets * rows.token_weight).groupby(rows.step).sum() / world
    assert list(total) == pytest.approx([1.0] * STEPS, rel=1e-5)
    of_a_step = rows.groupby("step").token_weight
    assert (of_a_step.max() / of_a_step.min()).max() == pytest.approx(1, rel=1e-5)
