# SPDX-License-Identifier: Apache-2.0
"""The fault benchmark without its training: catalogue, judgement, tables, command line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from presum.__main__ import main as presum
from presum.errors import UserError
from presum.experiments.faults import command, null, table
from presum.experiments.faults.catalogue import ABSENT, FAULTS, ROWS, Fault, choose
from presum.experiments.faults.judge import Outcome, judge
from presum.experiments.faults.plan import Configuration, Roles
from presum.experiments.faults.sightings import Result, Sighting

# As docs/findings.md has them.
SEVERITIES = {
    **dict.fromkeys(
        [
            *("nonfinite-gradient", "no-reduction", "reduced-gradient-mismatch"),
            *("parameter-desync", "duplicate-data", "reduction-scale", "zero-gradient"),
            *("frozen-gradient", "reduction-error"),
        ],
        "critical",
    ),
    **dict.fromkeys(
        [
            *("overlapping-data", "sampler-mismatch", "epoch-not-set", "manifest-mismatch"),
            *("buffer-desync", "mode-mismatch", "worker-outlier", "too-consistent"),
            *("reduction-dtype", "reduction-nondeterministic"),
        ],
        "warning",
    ),
    "shared-rng": "info",
}


def fault(name: str) -> Fault:
    (found,) = choose([name])
    return found


# ---- the catalogue


def test_every_row_is_injected_or_says_why_not() -> None:
    injected = [f.row for f in FAULTS if f.row is not None]
    absent = [a.row for a in ABSENT if a.row is not None]
    assert sorted([*injected, *absent]) == list(range(1, ROWS + 1))
    assert len(injected) >= 18
    assert all(f.thread for f in FAULTS if f.row is not None)
    assert all(a.why for a in ABSENT)


def test_names_are_unique_and_differ_from_their_twins() -> None:
    folders = [folder for f in FAULTS for folder in {f.case.folder}]
    assert max(Counter(folders).values()) == 1
    assert not set(folders) & {f.twin.folder for f in FAULTS}


def test_twins_are_shared_only_by_equal_configurations() -> None:
    by_folder: dict[str, set[Configuration]] = {}
    for f in FAULTS:
        by_folder.setdefault(f.twin.folder, set()).add(f.configuration)
    assert all(len(configurations) == 1 for configurations in by_folder.values())
    assert all(not f.twin.injector for f in FAULTS)


@pytest.mark.parametrize("one", FAULTS, ids=lambda f: f.name)
def test_a_fault_has_time_to_be_found_and_the_stated_severity(one: Fault) -> None:
    assert one.begins + (one.target or 0) < one.configuration.steps
    if one.expects == "token-imbalance":
        assert one.severity == ("info" if one.ranks == "all" else "warning")
    else:
        assert one.severity == SEVERITIES[one.expects]


def test_an_injector_only_replaces_what_a_clean_run_has() -> None:
    """A method that replaces nothing would break nothing, and the fault would not be there."""
    from presum.experiments.faults import injectors
    from presum.experiments.faults.training import Training

    for f in FAULTS:
        kind = getattr(injectors, f.injector)
        assert issubclass(kind, Training)
        public = {name for name in vars(kind) if not name.startswith("_")}
        for name in public:
            assert any(name in vars(base) for base in kind.__mro__[1:]), f"{f.injector}.{name}"


def test_faults_are_chosen_by_name_and_row_in_the_catalogues_order() -> None:
    assert choose([]) == FAULTS
    assert [f.name for f in choose(["zero-gradient", "22", "1"])] == [
        *("sampler-seed-times-rank", "sum-instead-of-mean", "zero-gradient")
    ]
    with pytest.raises(UserError, match="--faults 23: not injected"):
        choose(["23"])
    with pytest.raises(UserError, match="--faults 31: no such fault or row"):
        choose(["31"])


@pytest.mark.parametrize("workers", [4, 5, 8, 64])
def test_a_culprit_is_a_minority_and_a_pair_is_two(workers: int) -> None:
    roles = Roles(workers)
    assert 0 < roles.culprit < workers
    assert len(set(roles.pair)) == 2
    assert max(roles.pair) < workers
    assert roles.named("all") == tuple(range(workers))
    assert roles.named("upper half")[-1] == workers - 1


def documented() -> list[list[str]]:
    """Rows of the tables in docs/faults.md, without backticks."""
    text = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line[1:-1].split("|")] for line in lines]


@pytest.mark.parametrize("one", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_documented_as_it_is(one: Fault) -> None:
    (row,) = [row for row in documented() if one.name in row]
    report = [] if one.row is None else [str(one.row), one.thread]
    assert row[: len(report) + 4] == [*report, one.name, one.what, one.expects, one.severity]
    assert row[-1] == ("" if one.target is None else str(one.target))


def test_what_is_not_injected_is_documented_with_its_reason() -> None:
    for one in ABSENT:
        assert ["" if one.row is None else str(one.row), *astuple(one)[1:]] in documented()


# ---- the judgement


def finding(check: str, severity: str, ranks: list[int], **rest: Any) -> dict[str, Any]:
    values = {"check": check, "severity": severity, "ranks": ranks, "also": [], "last_step": 39}
    return values | rest


QUIET = Result([], [])


def judged(name: str, *findings: dict[str, Any], seen: Any = (), twin: Result = QUIET) -> Outcome:
    return judge(fault(name), Result(list(findings), list(seen)), twin, workers=8)


def test_a_finding_of_the_right_check_and_ranks_passes() -> None:
    desync = finding("parameter-desync", "critical", [0], also=["worker-outlier"])
    seen = [
        Sighting("parameter-desync", "critical", (0,), 13),
        Sighting("parameter-desync", "critical", (0, 1), 20),
    ]
    outcome = judged("skipped-update", desync, seen=seen)
    assert outcome.passed
    assert outcome.in_time
    assert outcome.delay == 13 - fault("skipped-update").begins
    assert outcome.also == ("worker-outlier",)


def test_a_delay_counts_from_the_same_finding_on_the_same_ranks() -> None:
    seen = [
        Sighting("worker-outlier", "warning", (3,), 2),
        Sighting("no-reduction", "critical", (5,), 21),
        Sighting("worker-outlier", "info", (4, 5), 22),
        Sighting("worker-outlier", "warning", (5,), 40),
    ]
    outlier = finding("worker-outlier", "warning", [5])
    assert judged("doubled-gradient", outlier, seen=seen).delay == 20
    assert judged("doubled-gradient", outlier, seen=seen[:3]).delay == 39 - 20
    at_50 = Sighting("worker-outlier", "warning", (5,), 50)
    late = judged("doubled-gradient", outlier, seen=[at_50])
    assert late.passed
    assert not late.in_time


def test_wrong_ranks_wrong_names_and_silence_fail() -> None:
    assert not judged("nan-gradient").found
    wrong_ranks = judged("nan-gradient", finding("nonfinite-gradient", "critical", [4]))
    assert wrong_ranks.right_check
    assert not wrong_ranks.passed
    misnamed = judged("nan-gradient", finding("zero-gradient", "critical", [5]))
    assert misnamed.found
    assert misnamed.right_ranks
    assert not misnamed.passed
    too_mild = judged("nan-gradient", finding("nonfinite-gradient", "warning", [5]))
    assert not too_mild.passed


def test_information_counts_only_where_it_is_what_is_expected() -> None:
    assert not judged("nan-gradient", finding("shared-rng", "info", [5])).found
    everyone = list(range(8))
    assert judged("dropout-seed", finding("shared-rng", "info", everyone)).passed


def test_the_finding_on_the_right_ranks_is_the_one_that_counts() -> None:
    wrong = finding("worker-outlier", "warning", [1])
    right = finding("worker-outlier", "warning", [5])
    outcome = judged("doubled-gradient", wrong, right)
    assert outcome.passed
    assert outcome.others == ("worker-outlier",)


@pytest.mark.parametrize(
    ("said", "alarm"),
    [
        (finding("worker-outlier", "warning", [1]), True),
        (finding("shared-rng", "info", [0, 1]), True),
        (finding("token-imbalance", "info", [0, 1]), False),
    ],
)
def test_a_clean_twin_may_say_only_unrelated_information(said: dict[str, Any], alarm: bool) -> None:
    right = finding("shared-rng", "info", list(range(8)))
    outcome = judged("dropout-seed", right, twin=Result([said], []))
    assert outcome.passed != alarm
    assert outcome.false_alarms == ((said["check"],) if alarm else ())


def test_a_milder_finding_of_the_same_check_is_another_one() -> None:
    """Uneven token counts of all are in the data; one rank's are the fault."""
    of_all = finding("token-imbalance", "info", list(range(8)))
    right = finding("token-imbalance", "warning", [5])
    assert judged("prompt-in-loss", right, of_all, twin=Result([of_all], [])).passed


# ---- tables


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], "-"), ([4], "4"), ([0, 1, 2, 3, 8], "0-3,8"), ([2, 6], "2,6"), ([5, 6], "5-6")],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert table.ranges(ranks) == text


def outcomes() -> list[Outcome]:
    everyone = list(range(8))
    return [
        judged("forward-through-module", finding("no-reduction", "critical", everyone)),
        judged("nan-gradient", finding("zero-gradient", "critical", [5])),
        judged("no-set-epoch", twin=Result([finding("worker-outlier", "warning", [1])], [])),
    ]


def test_the_table_says_what_went_wrong() -> None:
    text = table.render(outcomes())
    lines = {line.split()[1]: line for line in text.splitlines() if len(line.split()) > 5}
    assert "no-reduction 0-7" in lines["forward-through-module"]
    assert "NO" in lines["nan-gradient"]
    assert "not found" in lines["no-set-epoch"]
    assert "FALSE ALARM" in lines["no-set-epoch"]
    assert "no-set-epoch: its clean twin reports worker-outlier" in text
    left = len(FAULTS) - 3
    assert f"1 of 3 faults found with the right check and ranks; {left} of the" in text
    assert "not right: no-set-epoch, nan-gradient" not in text  # the order is the table's
    assert "not right: nan-gradient, no-set-epoch" in text
    assert "not injected" not in text
    assert "pytorch/pytorch#190626" not in text


def test_the_whole_table_lists_what_is_not_injected() -> None:
    text = table.render([judged(f.name) for f in FAULTS])
    assert "pytorch/pytorch#190626" in text
    assert f"0 of {len(FAULTS)} faults found with the right check and ranks; of the 30" in text
    assert "left out" not in text


def test_json_has_what_the_table_has() -> None:
    whole = json.loads(json.dumps(table.as_json(outcomes(), workers=8, seed=1)))
    assert whole["passed"] is False
    first, second, third = whole["faults"]
    assert first["row"] == 12
    assert first["passed"] is True
    assert second["expected_check"] == "nonfinite-gradient"
    assert second["check"] == "zero-gradient"
    assert third["check"] is None
    assert third["delay"] is None
    assert third["false_alarms"] == ["worker-outlier"]
    assert (whole["not_injected"], whole["left_out"]) == ([], len(FAULTS) - 3)
    every = table.as_json([judged(f.name) for f in FAULTS], workers=8, seed=1)
    assert {a["row"] for a in every["not_injected"]} == {None, 23, 26, 29}
    assert every["left_out"] == 0


def test_help_lists_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    assert "--simulate" in options


# ---- clean runs


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
    alarm = finding("worker-outlier", "warning", [1])
    first, second = null.cases(2)
    quiet = [null.NullRun(first, []), null.NullRun(second, [info])]
    assert null.as_json(quiet, workers=8, seed=1)["passed"] is True
    loud = [quiet[0], null.NullRun(second, [info, alarm])]
    assert null.as_json(loud, workers=8, seed=1)["runs_with_alarm"] == 1
    assert "1 of 2 clean runs" in null.render(loud)
    assert "warning worker-outlier 1" in null.render(loud)


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "'0' is not a whole number of 1 or more"),
        (["--null", "x"], "'x' is not a whole number"),
        (["--null", "2", "--faults", "1"], "not allowed with argument"),
        (["--fault", "1"], "unrecognized arguments: --fault"),
    ],
)
def test_wrong_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_run_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--workers 3: at least 4"):
        command.main(["--workers", "3"])
    with pytest.raises(UserError, match="--steps 10: no-set-epoch begins at step 20"):
        command.main(["--faults", "6", "--steps", "10"])
    with pytest.raises(UserError, match="No such file"):
        command.main(["--data", str(tmp_path / "none.json"), "--out", str(tmp_path)])


def test_steps_are_those_of_fault_and_twin() -> None:
    changed = command.with_steps(fault("nan-gradient"), 30)
    assert changed.case.configuration.steps == changed.twin.configuration.steps == 30
    assert changed.twin.folder != fault("nan-gradient").twin.folder
    assert changed == replace(fault("nan-gradient"), configuration=changed.configuration)


def test_list_needs_no_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["presum", "faults", "--list"])
    assert presum() == 0
    text = capsys.readouterr().out
    for f in FAULTS:
        assert f.name in text
    assert "needs the norm that the training script logs" in text
    assert command.main(["--list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [f["fault"] for f in listed["faults"]] == [f.name for f in FAULTS]
    assert listed["faults"][0]["expected_ranks"] == list(range(8))
