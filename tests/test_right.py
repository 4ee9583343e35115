# SPDX-License-Identifier: Apache-2.0
"""Practices that look like mistakes are quiet, and the mistakes beside them are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from right import FAULTS, RIGHT, one_of_each
from verdicts import OF_THE_CLOCK

import presum

FEW = [*one_of_each(RIGHT), *one_of_each(FAULTS)]
OTHERS = [name for name in (*RIGHT, *FAULTS) if name not in FEW]
# Right, and still called inconsistent, each with what is not known.
STILL_ALARM = {
    "own_probes_of_little_weight": "that losses which differ by a ten-thousandth are not rounded",
    "shards_drawn_again": "that shards are drawn with replacement, by rows alone",
}
Findings = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def few(launch: Any) -> Findings:
    return findings_of(launch("right", 2, *FEW).out)


@pytest.fixture(scope="module")
def others(launch: Any) -> Findings:
    return findings_of(launch("right", 2, *OTHERS).out)


def findings_of(out: Any) -> Findings:
    return lambda name: [f for f in presum.load(out / name).findings if f.check not in OF_THE_CLOCK]


def judge(name: str, found: list[Any]) -> None:
    if name in RIGHT:
        assert [f.title for f in found if f.severity != "info"] == []
        return
    fault = FAULTS[name]
    due = [f for f in found if f.severity != "info" and fault.finds in (f.check, *f.also)]
    assert due, [f.title for f in found]
    assert not fault.ranks or [*fault.ranks] in [f.ranks for f in due]


@pytest.mark.parametrize("name", FEW)
def test_one_of_each_kind(name: str, few: Findings) -> None:
    judge(name, few(name))


@pytest.mark.deep
@pytest.mark.parametrize("name", [name for name in OTHERS if name not in STILL_ALARM])
def test_all_others(name: str, others: Findings) -> None:
    judge(name, others(name))


@pytest.mark.deep
@pytest.mark.parametrize("name", STILL_ALARM)
def test_what_is_not_known_to_be_right_may_be_allowed(name: str, others: Findings) -> None:
    """These are known to alarm: one that does not any more belongs to the others."""
    assert [f.title for f in others(name) if f.severity != "info"]
