# SPDX-License-Identifier: Apache-2.0
"""`presum compare` on real DDP workers: planted divergences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import report_browser

from programs_started import presum_command

WORLD = 4
ALL = list(range(WORLD))


@pytest.fixture(scope="module")
def runs(launch: Any) -> Path:
    return launch("compare", WORLD).out


presum = partial(presum_command, "compare")


def compared(a: Path, b: Path, code: int) -> Any:
    done = presum(a, b, "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def stages(document: Any) -> dict[str, Any]:
    (model,) = document["models"]
    return {stage["stage"]: stage for stage in model["stages"]}


@dataclass(frozen=True)
class Planted:
    """What a run differs in from the base, and where that is to be found."""

    stage: str
    step: int
    ranks: list[int]
    what: str  # a part of it
    between: str  # likewise
    layers: tuple[str, ...] = ()
    base: str = "base"
    seen: int | None = None  # when what differs was last seen equal, if not at the step before


PLANTED = {
    "sample": Planted("data", 5, [1], "samples (1 of 16", ""),
    "parameter": Planted("parameters", 5, ALL, "parameters", "steps 0 to 4", ("layers.1",), seen=0),
    "gradient": Planted(
        "local-gradient", 7, [3], "layers.2", "the backward pass of step 7", ("layers.2",)
    ),
    "summed-reversed": Planted(
        "reduction", 0, ALL, "reduced gradient", "the reduction of step 0", base="summed"
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_divergence_is_found_at_its_step_and_stage(runs: Path, name: str) -> None:
    planted = PLANTED[name]
    document = compared(runs / planted.base, runs / name, 1)
    (model,) = document["models"]
    assert (model["first_stage"], model["first_step"]) == (planted.stage, planted.step)
    first = stages(document)[planted.stage]["first"]
    assert first["ranks"] == planted.ranks
    assert planted.what in first["what"]
    assert tuple(first["layers"]) == planted.layers
    assert planted.between in model["between"]
    before = planted.step - 1 if planted.step else None
    assert model["last_identical"] == (before if planted.seen is None else planted.seen)


def test_equal_runs_are_identical(runs: Path) -> None:
    document = compared(runs / "base", runs / "again", 0)
    (model,) = document["models"]
    assert document["outcome"] == "identical"
    assert (model["common_steps"], model["first_stage"]) == (12, None)
    found = stages(document)
    full = ("configuration", "data", "random-generators", "loss", "local-gradient")
    assert [found[stage]["compared"] for stage in full] == [12] * len(full)
    assert found["final-parameters"]["compared"] == 1
    assert document["facts"] == []


# Of two models that differ at one step the one at the earlier stage comes first.
TWO_MODELS = """comparisonSentence({outcome: 'different',
  models: [['loss', 'A'], ['data', 'B']].map(([stage, what]) => (
    {first_stage: stage, first_step: 7, last_identical: null,
      stages: ['data', 'loss'].map((s) => ({stage: s, first: {step: 7, ranks: [], what}}))}))})"""


def test_a_browser_draws_the_comparison(runs: Path, tmp_path: Path) -> None:
    command = report_browser.find()
    if command is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    page = tmp_path / "difference.html"
    presum(runs / "base", runs / "gradient", "-o", page)
    with report_browser.Browser(command) as browser:
        browser.size(1280, 900)
        browser.open(page)
        sentence = browser.evaluate("document.querySelector('#comparison .verdict').textContent")
        rows = browser.evaluate("document.querySelectorAll('#comparison tr[data-stage]').length")
        chosen = browser.evaluate("document.querySelector('#comparison tr.chosen').dataset.stage")
        drawn = browser.evaluate("document.querySelectorAll('.tile').length")
        first_of_two = browser.evaluate(report_browser.with_page_functions(TWO_MODELS))
    assert first_of_two == "First difference: step 7, data, B."
    assert "step 7, local gradient, rank 3: gradient of 1 of 7 layers" in sentence
    assert (rows, chosen, drawn) == (9, "local-gradient", 2)
