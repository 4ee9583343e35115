# SPDX-License-Identifier: Apache-2.0
"""Figures of a run: ``run.plot``. They need matplotlib (``presum[plot]``)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from presum.errors import missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

PHASES = {
    "time_data": "data",
    "time_forward": "forward",
    "time_backward": "backward",
    "time_optimizer": "optimizer",
    "time_rest": "rest",
    "time_reduction": "waiting",
}
WIDE = (8, 3.5)  # inches
SQUARE = (5, 4)
COLORED = 8
DRAWN = 2000  # points of a line; of more steps, the extremes of each bin
WRITTEN = 8  # with more ranks, a matrix has no numbers in its cells


class Line(NamedTuple):
    """What a rank reported, by step."""

    rank: int
    steps: Floats
    values: Floats


def losses_of(lines: Sequence[Line], named: Mapping[int, str], axes: Axes | None = None) -> Axes:
    """The loss of each rank over the steps.

    Args:
        lines: one for each rank. NaN is a gap.
        named: what findings say of some ranks. Only these have a color, or else the first 8 ranks.
        axes: where to draw; a new figure by default.
    """
    axes = axes or _new_axes(WIDE)
    shown = named.keys() or {line.rank for line in lines[:COLORED]}
    others = [line for line in lines if line.rank not in shown]
    for line in others:
        label = "other ranks" if line is others[0] else None
        axes.plot(*_thinned(line), linewidth=0.7, color="0.75", label=label)
    for line in (line for line in lines if line.rank in shown):
        told = f": {named[line.rank]}" if line.rank in named else ""
        axes.plot(*_thinned(line), linewidth=1.2, label=f"rank {line.rank}{told}")
    axes.set(xlabel="step", ylabel="loss")
    _legend_beside(axes)
    return axes


def cosines_of(matrix: Floats, ranks: Sequence[int], title: str, axes: Axes | None = None) -> Axes:
    """The cosine similarity of every pair of ranks, as a matrix of colors from -1 to 1.

    Args:
        matrix: of shape (W, W). NaN is gray.
        ranks: the global ranks of its W rows.
        title: of the figure.
        axes: where to draw; a new figure by default.
    """
    axes = axes or _new_axes(SQUARE)
    image = axes.imshow(np.ma.masked_invalid(matrix), vmin=-1, vmax=1, cmap="RdBu")
    axes.set_facecolor("0.8")
    axes.figure.colorbar(image, ax=axes, label="cosine similarity")
    shown = range(0, len(ranks), max(1, len(ranks) // 16))
    names = [str(ranks[at]) for at in shown]
    axes.set_xticks(list(shown), names)
    axes.set_yticks(list(shown), names)
    axes.set(xlabel="rank", ylabel="rank", title=title)
    if len(ranks) <= WRITTEN:
        for (row, column), value in np.ndenumerate(matrix):
            color = "white" if abs(value) > 0.6 else "black"
            text = axes.text(column, row, f"{value:.2f}", color=color, fontsize="small")
            text.set(ha="center", va="center")
    return axes


def times_of(ranks: Sequence[int], times: Mapping[str, Floats], axes: Axes | None = None) -> Axes:
    """The mean time of a step of each rank, in milliseconds, by phase.

    Args:
        ranks: global ranks.
        times: for each of ``PHASES``, the mean seconds of each rank. NaN is drawn as 0.
        axes: where to draw; a new figure by default.
    """
    axes = axes or _new_axes(WIDE)
    places = np.arange(len(ranks))
    width = 0.8 if len(ranks) <= 64 else 1.0
    floor = np.zeros(len(ranks))
    for phase, name in PHASES.items():
        tall = 1000 * np.nan_to_num(times[phase])
        color = "0.85" if phase == "time_reduction" else None
        axes.bar(places, tall, width, bottom=floor, label=name, color=color)
        floor += tall
    shown = range(0, len(ranks), max(1, len(ranks) // 16))
    axes.set_xticks(list(shown), [str(ranks[at]) for at in shown])
    axes.set(xlabel="rank", ylabel="milliseconds of a step")
    _legend_beside(axes)
    return axes


def png_of_losses(lines: Sequence[Line], named: Mapping[int, str]) -> bytes:
    """The figure of the losses as PNG, for a page. Empty if matplotlib is not installed, or cannot
    draw it."""
    try:
        from matplotlib.figure import Figure

        figure = Figure(figsize=WIDE, layout="constrained")
        losses_of(lines, named, figure.add_subplot())
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=100)
    except Exception:
        return b""
    return image.getvalue()


def _legend_beside(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def _thinned(line: Line) -> tuple[Floats, Floats]:
    """All points, or the lowest and the highest of each bin of steps."""
    count = len(line.steps)
    if count <= DRAWN:
        return line.steps, line.values
    bins = np.array_split(np.arange(count), DRAWN // 2)
    low = [at[np.argmin(np.nan_to_num(line.values[at], nan=np.inf))] for at in bins]
    high = [at[np.argmax(np.nan_to_num(line.values[at], nan=-np.inf))] for at in bins]
    kept = np.unique([*low, *high])
    return line.steps[kept], line.values[kept]


def _new_axes(size: tuple[float, float]) -> Axes:
    """Of a figure that notebooks show by themselves, and scripts with ``pyplot.show()``."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise missing("run.plot", error) from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]
