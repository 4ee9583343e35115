# SPDX-License-Identifier: Apache-2.0
"""Figures of a run, and what a notebook shows of it."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import presum
from helpers.recorded_runs import record
from presum.findings import Finding
from presum.loading.figures import DRAWN, PHASES
from presum.loading.plots import Plots

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def recorded(run: Path, **how: Any) -> presum.Run:
    record(run, ranks=3, **how)
    return presum.load(run)


def workers_of(ranks: list[int], steps: int, **columns: Any) -> dict[str, Any]:
    """A frame as it is without pandas: the rows of each step lie together."""
    count = len(ranks) * steps
    workers = {
        "step": np.repeat(np.arange(steps), len(ranks)),
        "rank": np.tile(np.array(ranks), steps),
        "replica": np.tile(np.arange(len(ranks)), steps),
        "segment": np.ones(count, int),
        "model_index": np.zeros(count, int),
        "dp_group": np.zeros(count, int),
        "loss": np.arange(float(count)),
        **{phase: np.full(count, np.nan) for phase in PHASES},
    }
    return {**workers, **columns}


def plots_of(workers: dict[str, Any], findings: list[Finding] | None = None) -> Plots:
    return Plots(workers, findings or [], lambda *_: (np.eye(1), [0]))


def finding(check: str, severity: str, ranks: list[int]) -> Finding:
    return Finding(check, severity, ranks, 0, 1, 0.9, check, check)


def legend_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_notebook_shows_verdict_findings_values_and_losses(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a&b")
    verdict = "inconsistent; 12 steps, 3 of 3 ranks; 1 finding; statistics need 18 steps"
    assert repr(run).startswith(f"<presum.Run {tmp_path / 'a&b'}: {verdict}")
    page = run._repr_html_()
    root = ElementTree.fromstring(f"<html>{page}</html>")
    assert "".join(root.find("p").itertext()).startswith("a&b: inconsistent; 12 steps")
    assert "nonfinite-gradient" in "".join(root.find("ul").itertext())
    _, last = root.find("table")
    assert [cell.text for cell in last][:2] == ["11", "2.1"]  # the mean of 1.1, 2.1 and 3.1
    kind, _, image = root.find("img").get("src").partition(",")
    assert kind == "data:image/png;base64" and b64decode(image).startswith(b"\x89PNG")


def test_a_run_without_matplotlib_has_a_page_and_says_what_a_plot_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "<img" not in run._repr_html_()
    with pytest.raises(
        ImportError, match=r"run.plot needs matplotlib: pip install 'presum\[plot\]"
    ):
        run.plot.losses()


def test_a_run_that_is_gone_still_has_a_repr(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (tmp_path / "presum.db").unlink()
    assert "presum.db" in repr(run)
    assert "presum.db" in run._repr_html_()


def test_a_run_that_is_open_or_empty_says_so(tmp_path: Path) -> None:
    state = repr(recorded(tmp_path / "open", close=False))
    assert "not closed (still running, or died): judged on the 12 steps written" in state
    empty = recorded(tmp_path / "empty", steps=0)
    assert "insufficient evidence: no step was recorded" in repr(empty)
    assert "<img" not in empty._repr_html_()
    assert not empty.plot.losses().lines
    assert not empty.plot.times().patches


def test_losses_are_those_of_each_rank(tmp_path: Path) -> None:
    axes = recorded(tmp_path).plot.losses()
    first, last, named = axes.lines
    assert legend_of(axes) == ["other ranks", "rank 1: nonfinite-gradient"]
    for rank, line in enumerate((first, named, last)):
        assert np.allclose(line.get_ydata(), rank + np.arange(12) / 10)
    assert legend_of(plots_of(workers_of([3, 4], 2)).losses()) == ["rank 3", "rank 4"]


def test_a_segment_begins_a_line_of_its_own() -> None:
    workers = workers_of([0], 4, step=np.array([0, 1, 1, 2]), segment=np.array([1, 1, 2, 2]))
    (line,) = plots_of(workers).losses().lines
    assert np.array_equal(line.get_xdata(), [0, 1, 1, 1, 2])
    assert np.array_equal(line.get_ydata(), [0, 1, np.nan, 2, 3], equal_nan=True)


def test_losses_that_cannot_be_drawn_leave_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OverflowError

    run = recorded(tmp_path)
    monkeypatch.setattr(Figure, "savefig", fails)
    page = run._repr_html_()
    assert "inconsistent" in page and "<img" not in page


def test_of_many_ranks_those_that_findings_name_have_colors() -> None:
    findings = [
        finding("rank-outlier", "warning", [5]),
        finding("token-weight", "info", [6]),
        finding("no-progress", "critical", list(range(20))),
    ]
    axes = plots_of(workers_of(list(range(20)), 3), findings).losses()
    assert len(axes.lines) == 20
    assert legend_of(axes) == ["other ranks", "rank 5: rank-outlier"]


def test_of_many_steps_the_extremes_stay() -> None:
    losses = np.zeros(100_000)
    losses[54_321], losses[77_777], losses[99_000:] = 7, -7, np.nan
    (line,) = plots_of(workers_of([0], 100_000, loss=losses)).losses().lines
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert len(y) <= DRAWN
    assert (x[np.nanargmax(y)], np.nanmax(y)) == (54_321, 7)
    assert (x[np.nanargmin(y)], np.nanmin(y)) == (77_777, -7)


def test_cosines_are_in_the_order_of_the_replicas(tmp_path: Path) -> None:
    axes = recorded(tmp_path).plot.cosines(2)
    assert axes.get_title() == "step 2"
    assert axes.images[0].get_clim() == (-1, 1)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "2"]
    with pytest.raises(KeyError, match="no step 99"):
        recorded(tmp_path / "other").plot.cosines(99)


def test_times_are_means_of_the_steps_whose_times_are_known() -> None:
    times = {phase: np.full(6, 0.001) for phase in PHASES}
    times["time_forward"] = np.array([np.nan, np.nan, 0.002, 0.004, 0.004, 0.008])
    axes = plots_of(workers_of([3, 9], 3, **times)).times()
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert set(heights) == set(PHASES.values())
    assert np.allclose(heights["forward"], [3, 6])
    assert np.allclose(heights["waiting"], [1, 1])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["3", "9"]
    unknown = plots_of(workers_of([3, 9], 3)).times()
    assert all(bar.get_height() == 0 for bars in unknown.containers for bar in bars)


def test_axes_that_are_given_are_drawn_into() -> None:
    axes = Figure().add_subplot()
    assert plots_of(workers_of([0, 1], 2)).losses(axes) is axes
    assert plots_of(workers_of([0, 1], 2)).times(axes) is axes
