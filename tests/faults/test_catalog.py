# SPDX-License-Identifier: Apache-2.0
"""What is injected, and what the documents say of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from faults.catalog import ABSENT, FAULTS, ROWS, choose
from faults.fault import Fault
from faults.plan import Roles
from faults.table import REPORTED
from markdown_tables import tables
from presum.errors import UserError

DOCS = Path(__file__).parents[2] / "docs"
FINDINGS = (DOCS / "findings.md").read_text(encoding="utf-8")
CHECKS = {row[0]: row for row in tables(FINDINGS)[0]}


FIRST = [f for f in FAULTS if not f.variant]


def test_every_fault_is_there_on_two_models() -> None:
    assert len(FIRST) >= 165
    assert all(other.variant for one, other in pairwise(FAULTS) if not one.variant)


def test_every_row_is_injected_or_says_why_not() -> None:
    injected = [f.row for f in FIRST if f.row is not None]
    absent = [a.row for a in ABSENT if a.row is not None]
    assert sorted([*injected, *absent]) == list(range(1, ROWS + 1))
    assert all(f.thread for f in FAULTS if f.row is not None)
    assert all(a.why for a in ABSENT)


def test_names_are_unique_and_twins_are_those_of_equal_configurations() -> None:
    folders, twins = {f.case.folder for f in FAULTS}, {f.twin.folder for f in FAULTS}
    assert len(folders) == len(FAULTS)
    assert not folders & twins
    assert len(twins) == len({f.configuration for f in FAULTS})


# Of checks that usually say more, or less; and from which ranks take different steps.
WARNINGS = (
    *("underflow", "model-noise", "layer-left-out", "rounded-away"),
    *("resumed-with-anothers-generator", "resumed-in-another-order"),
)
INFORMATION = (
    *("not-deterministic", "resumed-from-the-beginning", "mean-of-means"),
    "two-optimizers",
)
APART = ("norm-of-a-part", "one-norm-of-its-own", "max-norm-of-its-own", "norm-of-a-shard")


@pytest.mark.parametrize("one", FAULTS, ids=lambda f: f.name)
def test_a_fault_has_time_to_be_found_and_the_stated_severity(one: Fault) -> None:
    assert one.begins + (one.within or 0) < one.configuration.steps
    usual = "critical" if one.name.startswith(APART) else CHECKS[one.expects][1]
    usual = "info" if one.name.startswith(INFORMATION) else usual
    assert one.severity == ("warning" if one.name.startswith(WARNINGS) else usual)


def test_an_injector_only_replaces_what_a_clean_run_has() -> None:
    """A method that replaces nothing would break nothing, and the fault would not be there."""
    from faults.injectors import injector
    from faults.training import Training

    for f in FAULTS:
        kind = injector(f.injector)
        assert issubclass(kind, Training)
        public = {name for name in vars(kind) if not name.startswith("_")}
        for name in public:
            assert any(name in vars(base) for base in kind.__mro__[1:]), f"{f.injector}.{name}"


def test_faults_are_chosen_by_name_and_row_in_the_catalogs_order() -> None:
    assert choose([]) == FAULTS
    assert [f.name for f in choose(["zero-gradient", "22", "1"])] == [
        *("sampler-seed-times-rank", "sampler-seed-times-rank-cnn"),
        *("sum-instead-of-mean", "sum-instead-of-mean-cnn", "zero-gradient"),
    ]
    with pytest.raises(UserError, match="--faults 26: not injected"):
        choose(["26"])
    with pytest.raises(UserError, match="--faults 31: no such fault or row"):
        choose(["31"])


@pytest.mark.parametrize("workers", [3, 4, 5, 8, 64])
def test_a_culprit_is_a_minority_and_a_pair_is_two(workers: int) -> None:
    roles = Roles(workers)
    assert 0 < roles.culprit < workers
    assert len(set(roles.pair)) == 2
    assert max(roles.pair) < workers
    assert roles.named("all") == tuple(range(workers))
    assert roles.named("upper half")[-1] == workers - 1


def documented() -> list[list[str]]:
    """Rows of the tables in docs/faults.md."""
    text = (DOCS / "faults.md").read_text(encoding="utf-8")
    return [row for table in tables(text) for row in table]


def test_public_reports_and_no_others_are_documented_as_they_are_injected() -> None:
    injected = [[one.thread, one.what, one.expects] for one in REPORTED]
    absent = [[one.thread, one.what, one.why.replace("`", "")] for one in ABSENT if one.thread]
    assert [row[:3] for row in documented()] == injected + absent
