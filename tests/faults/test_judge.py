# SPDX-License-Identifier: Apache-2.0
"""What counts as found."""

from __future__ import annotations

from typing import Any

import pytest

from fault_outcomes import fault, finding, judged
from faults.sightings import Result, Sighting


def test_a_finding_of_the_right_check_and_ranks_passes() -> None:
    desync = finding("parameter-desync", "critical", [0], also=["rank-outlier"])
    seen = [
        Sighting("parameter-desync", "critical", (0,), 13),
        Sighting("parameter-desync", "critical", (0, 1), 20),
    ]
    outcome = judged("skipped-update", desync, seen=seen)
    assert outcome.passed
    assert outcome.in_time
    assert outcome.delay == 13 - fault("skipped-update").begins
    assert outcome.also == ("rank-outlier",)


def test_a_delay_counts_from_the_same_finding_on_the_same_ranks() -> None:
    seen = [
        Sighting("rank-outlier", "warning", (3,), 2),
        Sighting("no-reduction", "critical", (5,), 21),
        Sighting("rank-outlier", "info", (4, 5), 22),
        Sighting("rank-outlier", "warning", (5,), 40),
    ]
    outlier = finding("rank-outlier", "warning", [5])
    assert judged("doubled-gradient", outlier, seen=seen).delay == 20
    assert judged("doubled-gradient", outlier, seen=seen[:3]).delay == 39 - 20
    at_50 = Sighting("rank-outlier", "warning", (5,), 50)
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


@pytest.mark.parametrize(
    ("fault", "check", "tells_which"),
    [
        ("nan-gradient", "nonfinite-gradient", True),
        ("layer-without-one", "reduced-gradient-mismatch", True),
        ("other-learning-rate", "optimizer-mismatch", False),
    ],
)
def test_of_two_that_differ_both_may_be_named(fault: str, check: str, tells_which: bool) -> None:
    both, one, other = (finding(check, "critical", ranks) for ranks in ([0, 1], [1], [0]))
    assert judged(fault, both, workers=2).passed != tells_which
    assert judged(fault, one, workers=2).passed
    assert not judged(fault, other, workers=2).passed
    assert not judged(fault, both, workers=4).passed


def test_information_counts_only_where_it_is_what_is_expected() -> None:
    assert not judged("nan-gradient", finding("shared-rng", "info", [5])).found
    everyone = list(range(8))
    assert judged("dropout-seed", finding("shared-rng", "info", everyone)).passed


def test_the_finding_on_the_right_ranks_is_the_one_that_counts() -> None:
    wrong = finding("rank-outlier", "warning", [1])
    right = finding("rank-outlier", "warning", [5])
    outcome = judged("doubled-gradient", wrong, right)
    assert outcome.passed
    assert outcome.other_findings == ("rank-outlier",)


@pytest.mark.parametrize(
    ("said", "alarm"),
    [
        (finding("rank-outlier", "warning", [1]), True),
        (finding("shared-rng", "info", [0, 1]), True),
        (finding("token-imbalance", "info", [0, 1]), False),
    ],
)
def test_a_clean_twin_may_say_only_unrelated_information(said: dict[str, Any], alarm: bool) -> None:
    right = finding("shared-rng", "info", list(range(8)))
    outcome = judged("dropout-seed", right, twin=Result([said], []))
    assert outcome.passed != alarm
    assert outcome.false_alarms == ((said["check"],) if alarm else ())


@pytest.mark.parametrize(
    ("sentence", "holds"),
    [
        ("Rank 5 had elements that were not finite", True),
        ("Rank 5 had 12 elements that were not finite, 0.346 of them in layers.7", True),
        ("Rank 5 lost 34.6% of the 12 elements in bf16", True),
        ("Rank 5 had 13 elements that were not finite", False),
        ("Rank 5 had over 11 elements that were not finite", True),
        ("Rank 5 had over 12 elements that were not finite", False),
        ("Rank 5 lost 100 % of its elements", False),
        ("Ranks 5 and 6 had elements that were not finite", False),
    ],
)
def test_a_sentence_claims_no_number_that_its_evidence_does_not_hold(
    sentence: str, holds: bool
) -> None:
    values = {"elements": 12, "layers": ["layers.7"], "lost_share": 0.34567}
    seen = {"check": "a", "ranks": [5], "sentence": sentence, "values": values}
    claims = finding("nonfinite-gradient", "critical", [5], evidence=[seen])
    outcome = judged("nan-gradient", claims)
    assert outcome.passed == holds
    assert outcome.unsupported == (() if holds else (sentence,))


def test_a_milder_finding_of_the_same_check_is_another_one() -> None:
    """Uneven token counts of all are in the data; one rank's are the fault."""
    of_all = finding("token-imbalance", "info", list(range(8)))
    right = finding("token-imbalance", "warning", [5])
    assert judged("prompt-in-loss", right, of_all, twin=Result([of_all], [])).passed
