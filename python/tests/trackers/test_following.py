# SPDX-License-Identifier: Apache-2.0
"""Trackers that are slow, fail, or are missing: the others get everything, and the run one line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helpers.recorded_runs import STEPS, record
from presum.findings import Finding
from presum.trackers import following
from presum.trackers.following import Trackers
from presum.trackers.tracker import Row


class Memory:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.findings: list[Finding] = []
        self.found = 0
        self.verdict = self.page = ""

    def find(self) -> None:
        self.found += 1

    def open(self, run: Path) -> None:
        pass

    def log(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def tell(self, finding: Finding) -> None:
        self.findings.append(finding)

    def close(self, verdict: str, report: Path) -> None:
        self.verdict, self.page = verdict, report.read_text(encoding="utf-8")


class Failing(Memory):
    """The first two calls fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 2
        self.recovered = threading.Event()

    def log(self, rows: Sequence[Row]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the server is\naway")
        self.recovered.set()
        super().log(rows)


class Missing(Memory):
    def open(self, run: Path) -> None:
        raise ModuleNotFoundError("No module named 'aim'", name="aim")


class Stuck(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def log(self, rows: Sequence[Row]) -> None:
        self.free.wait()


Follow = Callable[..., list[str]]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Records one segment, and a second one that trackers follow. Returns the remarks."""

    def followed(*trackers: Memory, until: threading.Event | None = None) -> list[str]:
        known = {str(number): lambda one=one: one for number, one in enumerate(trackers)}
        monkeypatch.setattr(following, "_TRACKERS", known)
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(following, "STEPS_AT_ONCE", 5)
        remarks: list[str] = []
        record(tmp_path)
        together = Trackers(list(known), remarks.append)
        together.find()
        together.find()
        record(tmp_path, opened=lambda: together.start(tmp_path, lambda: None))
        if until is not None:
            until.wait()
        together.finish()
        return remarks

    return followed


def test_all_steps_and_findings_of_the_segment_are_logged_once(follow: Follow) -> None:
    one = Memory()
    assert follow(one) == []
    assert [row.step for row in one.rows] == [*range(STEPS)]
    assert one.rows[4].values["presum_loss/rank_1"] == pytest.approx(1.4)
    assert one.rows[4].values["presum/loss_mean"] == pytest.approx(0.9)
    assert one.rows[4].values["presum/loss_std"] == pytest.approx(0.5)
    assert "presum_grad_norm/rank_1" in one.rows[2].values
    assert "presum_grad_norm/rank_1" not in one.rows[3].values, "it is NaN"
    assert [f.check for f in one.findings].count("nonfinite-gradient") == 1
    assert {f.segment for f in one.findings} == {2}
    assert one.found == 1 and "inconsistent" in one.verdict and "<html" in one.page


def test_a_tracker_that_fails_is_tried_again_and_costs_one_line(follow: Follow) -> None:
    failing, other = Failing(), Memory()
    remarks = set(follow(failing, other, until=failing.recovered))
    assert remarks == {"0: the server is away; the run log has everything"}
    assert [row.step for row in failing.rows] == [row.step for row in other.rows]
    assert failing.verdict == other.verdict


def test_a_package_that_is_missing_is_named(follow: Follow) -> None:
    other = Memory()
    (remark,) = follow(Missing(), other)
    assert remark.startswith("0: logging to it needs aim: pip install aim")
    assert len(other.rows) == STEPS


def test_the_end_does_not_wait_for_ever(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "END_SECONDS", 2.0)
    stuck, other = Stuck(), Memory()
    (remark,) = follow(other, stuck)
    stuck.free.set()
    assert remark == "1: not done 2 s after the end of the run; the run log has everything"
    assert len(other.rows) == STEPS


def test_a_run_without_a_step_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_TRACKERS", {"missing": Missing})
    remarks: list[str] = []
    record(tmp_path)
    trackers = Trackers(["missing"], remarks.append)
    trackers.start(tmp_path, lambda: None)
    trackers.finish()
    assert remarks == []


def test_more_series_than_people_read_become_their_extremes(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.trackers.series.SERIES_MAX", 5)
    one = Memory()
    follow(one)
    ends = one.rows[4].values["presum_loss/lowest"], one.rows[4].values["presum_loss/highest"]
    assert ends == pytest.approx((0.4, 1.4))
    assert not any("rank_" in name for row in one.rows for name in row.values)
