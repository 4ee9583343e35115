# SPDX-License-Identifier: Apache-2.0
"""`presum compare` on real DDP workers: planted divergences, restarts, gaps, damaged files."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import report_browser

from programs_started import presum_command, run_command

WORLD = 4
ALL = list(range(WORLD))


@pytest.fixture(scope="module")
def runs(launch: Any, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("compare")
    for world in (WORLD, 2):
        done = launch("compare", world, folder)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder


presum = partial(presum_command, "compare")


def compared(a: Path, b: Path, code: int) -> Any:
    done = presum(a, b, "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def stages(document: Any) -> dict[str, Any]:
    (model,) = document["models"]
    return {stage["stage"]: stage for stage in model["stages"]}


def texts(difference: Any) -> str:
    return "\n".join(evidence["text"] for evidence in difference["evidence"])


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
    "seed": Planted("configuration", 0, ALL, "sampler_seed", ""),
    "dropout": Planted("configuration", 0, ALL, "dropout, dropouts", ""),
    "autocast": Planted("configuration", 0, ALL, "dtype", ""),
    "rate": Planted("configuration", 6, ALL, "learning_rate", ""),
    "sample": Planted("data", 5, [1], "samples (1 of 16", ""),
    "draw": Planted("random-generators", 4, [2], "rng_torch", ""),
    "start": Planted(
        "parameters", 0, ALL, "parameters", "the weights that the runs began with", ("layers.2",)
    ),
    "clip": Planted("parameters", 1, ALL, "parameters", "update of step 0", ("layers.0",)),
    "parameter": Planted("parameters", 5, ALL, "parameters", "steps 0 to 4", ("layers.1",), seen=0),
    "unused-row": Planted(
        "parameters", 25, ALL, "embed.weight", "steps 0 to 24", ("embed.weight",), "long", 0
    ),
    "momentum": Planted("parameters", 7, ALL, "layers.1", "steps 0 to 6", ("layers.1",), "sums", 0),
    "skipped": Planted("parameters", 7, [1], "layers.1", "steps 0 to 6", ("layers.1",), "sums", 0),
    "decay": Planted("configuration", 0, ALL, "weight_decay", "", base="sums"),
    "frozen": Planted("configuration", 0, ALL, "optimizer.params", ""),
    "loss": Planted("loss", 8, [1], "loss", "the forward pass of step 8"),
    "gradient": Planted(
        "local-gradient", 7, [3], "layers.2", "the backward pass of step 7", ("layers.2",)
    ),
    "summed-reversed": Planted(
        "reduction", 0, ALL, "reduced gradient", "the reduction of step 0", base="summed"
    ),
    "world-2": Planted("configuration", 0, [], "number of workers", ""),
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


def test_inputs_that_precede_a_planted_divergence_are_equal(runs: Path) -> None:
    for name in ("gradient", "loss", "parameter", "clip"):
        found = stages(compared(runs / "base", runs / name, 1))
        for stage in ("configuration", "data", "random-generators"):
            assert (found[stage]["compared"], found[stage]["differing"]) == (12, 0)


def test_the_gradient_of_one_layer_is_seen_though_every_norm_is_equal(runs: Path) -> None:
    found = stages(compared(runs / "base", runs / "gradient", 1))
    assert "1 of 7 layers: layers.2; norm" in texts(found["local-gradient"]["first"])
    assert "in both" in texts(found["local-gradient"]["first"])
    assert found["loss"]["first"]["step"] > 7  # what follows from it


def test_evidence_of_both_runs_is_shown(runs: Path) -> None:
    rate = stages(compared(runs / "base", runs / "rate", 1))["configuration"]["first"]
    assert "learning_rate: 0.1 in A, 0.05 in B" in texts(rate)
    reduction = stages(compared(runs / "summed", runs / "summed-reversed", 1))["reduction"]
    assert "norm of the reduced gradient" in texts(reduction["first"])


def test_a_write_to_parameters_that_were_not_hashed_is_not_called_the_computation(
    runs: Path,
) -> None:
    (model,) = compared(runs / "base", runs / "unseen-parameter", 1)["models"]
    assert model["first_step"] == 5
    assert model["first_stage"] in ("loss", "local-gradient")
    assert "or an update before it" in model["between"]


def test_a_parameter_that_changed_long_before_it_was_hashed_has_a_bracket(runs: Path) -> None:
    (model,) = compared(runs / "long", runs / "unused-row", 1)["models"]
    bracket = "they differ since one of the steps 1 to 25"
    assert model["bracket"].startswith(bracket)
    headline, *lines = presum(runs / "long", runs / "unused-row").stdout.splitlines()
    assert "identical up to step 0; first difference seen at step 25, parameters" in headline
    assert bracket in headline
    assert any("step 25 (last seen equal at step 0): all ranks" in line for line in lines)


def test_fewer_optimizer_steps_are_remarked(runs: Path) -> None:
    skipped = presum(runs / "sums", runs / "skipped").stdout
    assert "rank 1 made fewer optimiser steps in B than in the other run, from step 6 on" in skipped


def test_an_update_after_the_last_recorded_step_shows_in_final_parameters(runs: Path) -> None:
    (model,) = compared(runs / "sums", runs / "last-momentum", 1)["models"]
    assert model["first_stage"] == "final-parameters"
    assert model["last_identical"] == 0
    headline = presum(runs / "sums", runs / "last-momentum").stdout.splitlines()[0]
    assert "first difference seen after the last step, 11, final parameters" in headline


def test_a_frozen_layer_is_named_and_slices_of_other_parameters_are_not_compared(
    runs: Path,
) -> None:
    document = compared(runs / "base", runs / "frozen", 1)
    found = stages(document)
    assert "layers.2 only in A; the other layers are equal" in texts(
        found["local-gradient"]["first"]
    )
    assert (found["parameters"]["compared"], found["parameters"]["differing"]) == (1, 0)


@pytest.fixture(scope="module")
def worlds(launch: Any, tmp_path_factory: Any) -> Path:
    """One training by 1 and by 2 workers, with sums that do not depend on their number."""
    folder: Path = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRESUM_SALT", "tests")
        for world in (1, 2):
            (folder / str(world)).mkdir()
            done = launch("reduction", world, folder / str(world), "exact-mean", "plain")
            assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_other_numbers_of_workers_with_exact_sums_are_identical(
    worlds: Path, tmp_path: Path
) -> None:
    a, b = (worlds / str(world) / "exact-mean-run" for world in (1, 2))
    document = compared(a, b, 0)
    (model,) = document["models"]
    assert (document["outcome"], model["other_worlds"]) == ("identical", True)
    found = stages(document)
    assert found["final-parameters"]["compared"] == found["reduction"]["differing"] + 1 == 1
    page = tmp_path / "page.html"
    headline = presum(a, b, "-o", page).stdout.splitlines()[0]
    assert headline == document["agreement"]
    assert headline == (
        "identical for 1 and 2 workers, bit for bit, at 50 common steps: samples, parameters at "
        "26 steps, reduction at 2 steps, final parameters; not compared: random generators, loss, "
        "local gradient"
    )
    command = report_browser.find()
    if command is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    with report_browser.Browser(command) as browser:
        browser.open(page)
        sentence = browser.evaluate("document.querySelector('#comparison .verdict').textContent")
    assert sentence == headline[0].upper() + headline[1:] + "."


def test_other_numbers_of_workers_with_other_sums_are_different(worlds: Path) -> None:
    a, b = (worlds / str(world) / "plain-run" for world in (1, 2))
    (model,) = compared(a, b, 1)["models"]
    assert (model["first_stage"], model["other_worlds"]) == ("configuration", False)
    assert model["first_number"] == "reduction"


@pytest.mark.parametrize(("a", "b"), [("base", "again"), ("base", "base"), ("summed", "summed")])
def test_equal_runs_are_identical(runs: Path, a: str, b: str) -> None:
    document = compared(runs / a, runs / b, 0)
    (model,) = document["models"]
    assert document["outcome"] == "identical"
    assert (model["common_steps"], model["first_stage"]) == (12, None)
    found = stages(document)
    full = ("configuration", "data", "random-generators", "loss", "local-gradient")
    assert [found[stage]["compared"] for stage in full] == [12] * len(full)
    assert found["final-parameters"]["compared"] == 1
    assert document["facts"] == []


def test_a_generator_that_nobody_drew_from_is_no_difference(runs: Path) -> None:
    (model,) = compared(runs / "base", runs / "random", 0)["models"]
    assert any("rng_python" in remark for remark in model["remarks"])


def test_a_run_that_was_resumed_bit_by_bit_is_identical(runs: Path) -> None:
    (model,) = compared(runs / "summed", runs / "resumed", 0)["models"]
    assert (model["common_steps"], model["b"]["steps"]) == (12, 12)
    assert any("segment 2 of B goes on at step 6" in remark for remark in model["remarks"])


def test_a_resumed_run_that_lost_its_momentum_differs_after_its_first_update(runs: Path) -> None:
    (model,) = compared(runs / "summed", runs / "resumed-without-momentum", 1)["models"]
    assert (model["last_identical"], model["first_step"]) == (6, 7)
    assert "or an update before it" in model["between"]


def test_runs_recorded_at_other_distances_are_compared_at_common_steps(runs: Path) -> None:
    document = compared(runs / "base", runs / "every-5", 0)
    (model,) = document["models"]
    assert model["common_steps"] == 3
    assert {f["key"]: f["weight"] for f in document["facts"]}["every"] == "recording"
    (model,) = compared(runs / "base", runs / "every-5-gradient", 1)["models"]
    assert (model["last_identical"], model["first_step"]) == (5, 10)
    text = presum(runs / "base", runs / "every-5-gradient").stdout
    assert "it began at one of the steps 6 to 10" in text


def test_samples_of_another_salt_are_not_compared_but_their_positions(runs: Path) -> None:
    document = compared(runs / "base", runs / "salt", 0)
    assert stages(document)["data"]["compared"] == 12


def test_a_run_without_fingerprints_is_compared_by_its_numbers(runs: Path) -> None:
    (model,) = compared(runs / "base", runs / "plain", 0)["models"]
    assert "data: not recorded in B" in model["not_compared"]
    assert "configuration: not recorded in B" in model["not_compared"]
    assert "parameters: not recorded in B" in model["not_compared"]


def test_other_numbers_of_workers_leave_what_all_share(runs: Path) -> None:
    found = stages(compared(runs / "base", runs / "world-2", 1))
    assert found["parameters"]["first"]["step"] > 0  # they began alike
    assert found["data"]["first"]["step"] == 0  # half as many samples a step
    assert found["local-gradient"]["compared"] == 0


def edited(run: Path, folder: Path, sql: str) -> Path:
    shutil.copytree(run, folder)
    with closing(sqlite3.connect(folder / "presum.db")) as db:
        db.executescript(sql)
    return folder


def test_missing_steps_are_listed_and_the_others_compared(runs: Path, tmp_path: Path) -> None:
    gone = "DELETE FROM step WHERE step IN (3, 4, 11)"
    (model,) = compared(runs / "base", edited(runs / "base", tmp_path / "gaps", gone), 0)["models"]
    assert model["common_steps"] == 9
    assert any(line.startswith("3 of the 12 steps of A") for line in model["not_compared"])


def test_runs_without_a_common_step_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    late = edited(runs / "base", tmp_path / "late", "UPDATE step SET step = step + 100")
    document = compared(runs / "base", late, 2)
    assert document["outcome"] == "not-comparable"
    assert document["reason"] == "the runs have no step in common"


def test_what_cannot_be_read_is_one_line_and_exit_code_2(runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(runs / "base", damaged)
    data = bytearray((damaged / "presum.db").read_bytes())
    data[len(data) // 3 :] = b"\x5a" * (len(data) - len(data) // 3)
    (damaged / "presum.db").write_bytes(data)
    for run in (damaged, tmp_path / "absent"):
        done = presum(runs / "base", run, "-o", tmp_path / "page.html")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("presum compare: ")
        assert done.stderr.count("\n") == 1
        assert (f"{damaged}/presum.db is damaged: copy it again" in done.stderr) == (run == damaged)
    assert not (tmp_path / "page.html").exists()
    assert presum(runs / "base").returncode == 2


def test_the_text_names_step_stage_rank_and_layer(runs: Path) -> None:
    done = presum(runs / "base", runs / "gradient")
    first, *rest = done.stdout.splitlines()
    assert first == (
        "different: identical up to step 6; first difference at step 7, local gradient, rank 3: "
        "gradient of 1 of 7 layers, first in the backward pass layers.2"
    )
    assert rest[1].startswith("    between: the backward pass of step 7")
    assert any(line.endswith("<- first") for line in rest)


def test_the_page_holds_the_comparison_and_loads_nothing(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "difference.html"
    done = presum(runs / "base", runs / "gradient", "-o", page)
    assert done.returncode == 1
    html = page.read_text(encoding="utf-8")
    assert '"first_stage":"local-gradient"' in html
    assert "drawComparison" in html
    assert "src=" not in html.partition('id="presum-data"')[0]


def test_torch_is_not_imported(runs: Path) -> None:
    program = (
        "import sys; sys.argv = ['presum', 'compare', *sys.argv[1:]]\n"
        "from presum.__main__ import main\n"
        "code = main(); sys.exit(9 if 'torch' in sys.modules else code)"
    )
    assert (
        run_command([sys.executable, "-c", program, runs / "base", runs / "again"]).returncode == 0
    )


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
    assert (rows, chosen, drawn) == (8, "local-gradient", 2)
