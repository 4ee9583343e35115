# SPDX-License-Identifier: Apache-2.0
"""The final table and the model card."""

import math
from pathlib import Path

import pytest

from experiments.s1.card import model_card
from experiments.s1.model import ModelSource
from experiments.s1.plan import Plan
from experiments.s1.settings import MODES, SETTINGS, S1Run
from experiments.s1.table import Summary, render, shown, summarize

STRICT = Summary(0.0, 0.0, 0.0, 1.0, 1.0, 6.0)
MIDDLE = Summary(0.22, 0.66, 0.9, 0.77, 1.3, 5.8)
FREE = Summary(0.47, 1.5, 1.9, 0.1, 5.3, 4.8)


def _summaries() -> dict[S1Run, Summary]:
    replicated = dict(zip(SETTINGS, (STRICT, MIDDLE, FREE), strict=True))
    return {S1Run(m, s): FREE if m == "sharded" else replicated[s] for m in MODES for s in SETTINGS}


def test_summary_is_the_mean_over_steps() -> None:
    pandas = pytest.importorskip("pandas")
    names = [name for name in Summary._fields if name != "final_loss"]
    frame = pandas.DataFrame({n: [float(v) for v in range(40)] for n in [*names, "loss_mean"]})
    frame["cosine_mean"] = math.nan
    summary = summarize(frame)
    assert summary.loss_std == 19.5
    assert summary.final_loss == 29.5
    assert math.isnan(summary.cosine_mean)


@pytest.mark.parametrize(
    ("metric", "values", "verdicts"),
    [
        ("loss_std", (0.0, 0.2, 0.5), ["yes", "yes", "yes"]),
        ("loss_std", (0.0, 0.5, 0.5), ["yes", "no", "yes"]),
        ("loss_std", (0.5, 0.5, 0.5), ["no", "no", "no"]),
        ("loss_std", (0.0, 0.0, 0.0), ["no", "no", "no"]),
        ("cosine_mean", (1.0, 0.76, 0.1), ["yes", "yes", "yes"]),
        ("cosine_mean", (0.14, 0.14, 0.14), ["no", "no", "no"]),
        ("cosine_mean", (math.nan, math.nan, math.nan), ["?", "?", "?"]),
    ],
)
def test_verdicts_are_relative_to_the_extremes(
    metric: str, values: tuple[float, ...], verdicts: list[str]
) -> None:
    by_setting = dict(zip(SETTINGS, values, strict=True))
    assert [shown(metric, s, values=by_setting) for s in SETTINGS] == verdicts


def test_a_missing_extreme_leaves_the_verdict_open() -> None:
    assert shown("loss_std", "S1-2", values={"S1-1": 0.0, "S1-2": 0.2}) == "?"


def test_table_is_readable_and_honest() -> None:
    text = render(_summaries(), workers=8)
    assert max(map(len, text.splitlines())) <= 100
    line = next(x for x in text.splitlines() if x.startswith("loss std") and "yes" in x)
    words = "0.000 low yes 0.220 moderate yes 0.470 high yes"
    assert line.split()[2:] == words.split()
    assert "look alike" in text
    assert "8 ranks that do the work of one" in " ".join(text.split())


def test_table_explains_only_the_modes_it_has() -> None:
    one = {run: s for run, s in _summaries().items() if run.mode == "sharded"}
    assert "the work of one" not in render(one, workers=8)


def test_undefined_cosine_is_a_dash() -> None:
    alone = {S1Run("sharded", "S1-1"): STRICT._replace(cosine_mean=math.nan)}
    line = next(x for x in render(alone, workers=1).splitlines() if x.startswith("mean cosine"))
    assert line.split()[2:] == ["-", "high", "?"]
    assert "no other rank to disagree with" in render(alone, workers=1)


def _plan(source: ModelSource) -> Plan:
    return Plan(
        runs=(S1Run("sharded", "S1-2"),),
        workers=2,
        steps=3,
        batch=4,
        max_length=64,
        dtype="bf16",
        lr=2e-5,
        seed=7,
        out=Path("out"),
        save_models=True,
        source=source,
        data_name="alpaca.json",
        tokenizer=None,
        examples=(),
    )


def test_card_names_what_was_trained_and_measured() -> None:
    path = Path("somewhere/secret/my-model")
    card = model_card(_plan(ModelSource(path=path)), S1Run("sharded", "S1-2"), summary=MIDDLE)
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert 'base_model: "my-model"' in card
    assert "secret" not in card
    assert "| Seeds of ranks 0, 1, ... | 100010, 7 |" in card
    assert "| Data | alpaca.json, 0 records |" in card
    assert "| mean cosine | 0.770 |" in card


def test_card_of_a_built_model_has_no_base() -> None:
    card = model_card(_plan(ModelSource()), S1Run("sharded", "S1-2"), summary=MIDDLE)
    assert "base_model" not in card
    assert "builtin, initialized from scratch" in card
