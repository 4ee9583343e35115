# SPDX-License-Identifier: Apache-2.0
"""Clean runs."""

from __future__ import annotations

import pytest

from fault_outcomes import finding
from faults import null


@pytest.mark.parametrize(
    ("events", "trials", "interval"),
    [
        (0, 20, (0.0, 1 - 0.025 ** (1 / 20))),  # closed forms at the ends
        (20, 20, (0.025 ** (1 / 20), 1.0)),
        (5, 10, (0.187086, 0.812914)),  # tables
        (1, 20, (0.001265, 0.248733)),
        (0, 0, (0.0, 1.0)),
    ],
)
def test_the_interval_is_clopper_and_pearsons(
    events: int, trials: int, interval: tuple[float, float]
) -> None:
    assert null.clopper_pearson(events, trials) == pytest.approx(interval, abs=2e-6)


def test_clean_runs_have_seeds_and_folders_of_their_own_and_take_turns() -> None:
    cases = null.cases(25)
    assert len({case.seed_offset for case in cases}) == 25
    assert len({case.folder for case in cases}) == 25
    assert {case.configuration.model for case in cases} >= {"lm", "mlp", "cnn", "batch-norm"}
    assert {case.configuration.steps for case in cases} == {500}
    assert {case.configuration.steps for case in null.cases(2, steps=3)} == {3}


def test_clean_runs_pass_without_warnings() -> None:
    info = finding("token-imbalance", "info", [0, 1])
    alarm = finding("rank-outlier", "warning", [1])
    first, second = null.cases(2)
    quiet = [null.NullRun(first, 8, []), null.NullRun(second, 8, [info])]
    assert null.as_json(quiet, seed=1)["passed"] is True
    loud = [quiet[0], null.NullRun(second, 8, [info, alarm])]
    assert null.as_json(loud, seed=1)["runs_with_alarm"] == 1
    assert "1 of 2 clean runs" in null.render(loud)
    assert "warning rank-outlier 1" in null.render(loud)
