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
from presum.trackers.following import Place, end_of
from presum.trackers.following import follow as follow_run
from presum.trackers.tracker import Found, Row


class Memory:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.findings: list[Finding] = []
        self.found: Found = {}
        self.verdict = self.page = ""

    @staticmethod
    def find() -> Found:
        return {}

    def open(self, run: Path, found: Found) -> None:
        self.found = found

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
            raise OSError(f"http://me:secret@host is\naway, request {self.failures}")
        self.recovered.set()
        super().log(rows)


class Missing(Memory):
    def open(self, run: Path, found: Found) -> None:
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

    def followed(
        *trackers: Memory, until: threading.Event | None = None, seconds: float = 100.0
    ) -> list[str]:
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(following, "STEPS_AT_ONCE", 5)
        remarks: list[str] = []
        places: list[Place] = []
        record(tmp_path)
        named = {str(number): (one, {"project": "p"}) for number, one in enumerate(trackers)}
        record(tmp_path, opened=lambda: places.append(end_of(tmp_path)))

        def await_end() -> None:
            if until is not None:
                until.wait()

        follow_run(named, places[0], remarks.append, await_end, seconds)
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
    assert one.found == {"project": "p"} and "inconsistent" in one.verdict and "<html" in one.page


def test_a_tracker_that_fails_is_tried_again_and_costs_one_line(follow: Follow) -> None:
    failing, other = Failing(), Memory()
    remarks = follow(failing, other, until=failing.recovered)
    expected = "0: http://***@host is away, request 1; the run log has everything"
    assert remarks == [expected]
    assert [row.step for row in failing.rows] == [row.step for row in other.rows]
    assert failing.verdict == other.verdict


def test_a_package_that_is_missing_is_named(follow: Follow) -> None:
    other = Memory()
    (remark,) = follow(Missing(), other)
    assert remark.startswith("0: logging to it needs aim: pip install aim")
    assert len(other.rows) == STEPS


def test_the_end_does_not_wait_for_ever(follow: Follow) -> None:
    stuck, other = Stuck(), Memory()
    (remark,) = follow(other, stuck, seconds=2.0)
    stuck.free.set()
    assert remark == "1: not done 2 s after the end of the run; the run log has everything"
    assert len(other.rows) == STEPS


def test_more_series_than_people_read_become_their_extremes(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.trackers.series.SERIES_MAX", 5)
    one = Memory()
    follow(one)
    ends = one.rows[4].values["presum_loss/lowest"], one.rows[4].values["presum_loss/highest"]
    assert ends == pytest.approx((0.4, 1.4))
    assert not any("rank_" in name for row in one.rows for name in row.values)
