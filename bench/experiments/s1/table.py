# SPDX-License-Identifier: Apache-2.0
"""The final table: the measurements of each run, next to the paper's expectation for its
setting."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.s1.settings import S1Run

LAST_STEPS = 20
"""Steps at the end of a run over which its final loss is averaged."""


class Summary(NamedTuple):
    """Means over the steps of one run; NaN if undefined (the cosine of one rank)."""

    loss_std: float
    loss_range: float
    grad_norm_std: float
    cosine_mean: float
    effective_workers: float
    final_loss: float


LABELS = {
    "loss_std": "loss std",
    "loss_range": "loss range",
    "grad_norm_std": "grad-norm std",
    "cosine_mean": "mean cosine",
    "effective_workers": "effective ranks",
    "final_loss": f"mean loss, last {LAST_STEPS}",
}

_DISPERSION = ("loss_std", "loss_range", "grad_norm_std")
_MEANING = {
    "S1-1": "strict alignment",
    "S1-2": "one rank deviates",
    "S1-3": "independent",
}
_HEADING = {
    "sharded": "sharded: each rank reads its share of the data, shuffled by its seed",
    "replicated": "replicated: each rank reads all the data, in the order of its seed",
}
_RULE = (
    "shown: yes where S1-1 and S1-3 of the mode differ (dispersion at least doubled, cosine lower\n"
    "by 0.2 or more) and, for S1-2, where it lies 10 to 90 % of the way between them."
)
_WIDTH, _COLUMN = 19, 27


def summarize(steps: Any) -> Summary:
    means = {n: float(steps[n].mean()) for n in Summary._fields if n != "final_loss"}
    return Summary(**means, final_loss=float(steps["loss_mean"].tail(LAST_STEPS).mean()))


def expected(metric: str, setting: str) -> str:
    """The paper's expectation as a word; "" for a metric that it does not cover."""
    if metric in _DISPERSION:
        return {"S1-1": "low", "S1-2": "moderate", "S1-3": "high"}[setting]
    if metric == "cosine_mean":
        return {"S1-1": "high", "S1-2": "moderate", "S1-3": "low"}[setting]
    return ""


def shown(metric: str, setting: str, *, values: Mapping[str, float]) -> str:
    """Whether ``values`` (by setting, of one mode) show the expectation: yes, no, or ``?``.

    The rule is relative to S1-1 and S1-3 of the same mode; ``?`` if one of them is missing or
    undefined.
    """
    strict, free = values.get("S1-1", math.nan), values.get("S1-3", math.nan)
    if not all(map(math.isfinite, (strict, free, values[setting]))):
        return "?"
    contrast = strict <= free / 2 < free if metric in _DISPERSION else strict - free >= 0.2
    if not contrast:
        return "no"
    if setting != "S1-2":
        return "yes"
    return "yes" if 0.1 <= (values[setting] - strict) / (free - strict) <= 0.9 else "no"


def figure(value: float) -> str:
    """Three decimals; a dash for an undefined value."""
    return f"{value:.3f}" if math.isfinite(value) else "-"


def render(summaries: Mapping[S1Run, Summary], *, workers: int) -> str:
    """The table as text, at most 100 columns wide, and its interpretation."""
    modes = list(dict.fromkeys(run.mode for run in summaries))
    blocks = [_block(mode, summaries) for mode in modes]
    return "\n\n".join([*blocks, _RULE, _verdict(modes, workers=workers)])


def _block(mode: str, summaries: Mapping[S1Run, Summary]) -> str:
    columns = {run.setting: s for run, s in summaries.items() if run.mode == mode}
    names = [f"{setting} {_MEANING[setting]}" for setting in columns]
    units = ["measured  expected  shown"] * len(columns)
    rows = [_line(_HEADING[mode].partition(":")[0], names), _line("", units)]
    for metric in Summary._fields:
        values = {setting: float(getattr(s, metric)) for setting, s in columns.items()}
        rows.append(_line(LABELS[metric], [_cell(metric, s, values=values) for s in columns]))
    return "\n".join([_HEADING[mode], "", *rows])


def _cell(metric: str, setting: str, *, values: Mapping[str, float]) -> str:
    word = expected(metric, setting)
    verdict = shown(metric, setting, values=values) if word else ""
    return f"{figure(values[setting]):>8}  {word:<8}  {verdict}"


def _line(label: str, cells: list[str]) -> str:
    return (f"{label:<{_WIDTH}}" + "".join(f"{cell:<{_COLUMN}}" for cell in cells)).rstrip()


def _verdict(modes: list[str], *, workers: int) -> str:
    if workers == 1:
        return "What this means: a single rank has no other rank to disagree with."
    meaning = {
        "sharded": "sharding hides the seeds from these metrics: the ranks read different "
        "records under every setting, so the three settings look alike, and the metrics do not "
        "show which records S1-2 and S1-3 read twice or never",
        "replicated": "replicated data shows the paper's pattern, but there 'strict' means "
        f"{workers} ranks that do the work of one",
    }
    sentence = "; ".join(meaning[mode] for mode in modes)
    return textwrap.fill(f"What this means: {sentence}.", width=100)
