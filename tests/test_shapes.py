# SPDX-License-Identifier: Apache-2.0
"""Every shape of training: its steps, losses and gradients are what they are without presum."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verdicts import found_of_training

import presum
from shapes import SHAPES
from shapes.training import EVERY, Shape

ROOT = Path(__file__).resolve().parents[1]
Results = Callable[[str], dict[str, Any]]
every_shape = pytest.mark.parametrize("name", SHAPES)


@pytest.fixture(scope="module")
def results(launch: Any) -> Results:
    """All shapes in one launch for each number of workers."""
    return results_of(launch, "shapes")


def results_of(launch: Any, program: str) -> Results:
    outs = {world: launch(program, world).out for world in {s.world for s in SHAPES.values()}}

    def of(name: str) -> dict[str, Any]:
        world = SHAPES[name].world
        out = outs[world]
        told = [json.loads((out / f"{name}.{rank}.json").read_text()) for rank in range(world)]
        errors = [one["error"] for one in told if "error" in one]
        assert not errors, errors[0]
        return {"ranks": told, "run": presum.load(out / name)}

    return of


@every_shape
def test_it_trains_as_without_presum_and_nothing_stays(name: str, results: Results) -> None:
    for told in results(name)["ranks"]:
        plain, *others = told["digests"]
        assert others == [plain, plain]
        assert told["alive"] == 0


@every_shape
def test_every_step_has_its_loss_and_its_own_gradient(name: str, results: Results) -> None:
    found = results(name)
    for rank, told in enumerate(found["ranks"]):
        models = {step["model"] for step in told["expected"]}
        assert set(found["run"].workers.query(f"rank == {rank}").model_index) == models
        for model in models:
            steps = [step for step in told["expected"] if step["model"] == model]
            rows = found["run"].workers.query(f"rank == {rank} and model_index == {model}")
            if SHAPES[name].ragged:
                assert rows.step.is_monotonic_increasing and rows.step.is_unique
            else:
                assert rows.step.tolist() == list(range(len(steps)))
            assert rows.micro_batches.tolist() == [len(step["losses"]) for step in steps]
            assert rows.use.tolist() == [step["use"] for step in steps]
            assert rows.reduced.tolist() == [step["reduced"] for step in steps]
            norms = [np.nan if step["norm"] is None else step["norm"] for step in steps]
            close(rows.loss, [np.mean(step["losses"]) for step in steps])
            close(rows.grad_norm, norms)


def close(told: Any, expected: list[float]) -> None:
    """What has nearly canceled is as exact as the largest of the run."""
    largest = max(filter(np.isfinite, expected), default=0.0, key=abs)
    np.testing.assert_allclose(told, expected, rtol=1e-6, atol=1e-7 * abs(largest))


def events_of(lines: list[str]) -> list[str]:
    """Without numbers that depend on the machine."""
    return [" ".join(w for w in line.split() if "." not in w and w != "nan") for line in lines]


TRACES = sorted((ROOT / "src" / "step" / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_torch_tells_what_the_golden_trace_says(path: Path, results: Results) -> None:
    """PRESUM_UPDATE_DOCS=1 writes those that are there. src/step/traces_test.cc replays them."""
    lines = [line for trace in results(path.stem)["ranks"][1]["traces"] for line in trace]
    if os.environ.get("PRESUM_UPDATE_DOCS"):
        path.write_text("\n".join([*lines, ""]))
    assert events_of(lines) == events_of(path.read_text().splitlines())


@every_shape
def test_nothing_is_found_but_what_is_wrong(name: str, results: Results) -> None:
    findings = found_of_training(results(name)["run"])
    grave = {finding.check for finding in findings if finding.severity != "info"}
    assert grave == SHAPES[name].findings


def test_tensor_parallel_ranks_share_a_step_with_those_of_their_part(results: Results) -> None:
    steps = results("fsdp-tensor-parallel")["run"].steps
    assert steps.groupby("dp_group").step.count().tolist() == [20, 20]
    assert (steps.workers == 2).all()


def test_labels_of_a_distributed_tensor_are_counted(results: Results) -> None:
    assert set(results("distributed-inputs")["run"].workers.tokens) == {3}


@pytest.mark.parametrize(
    ("name", "kind"), [("nested-inputs", "Tensor"), ("inputs-of-another-class", "Marked")]
)
def test_what_is_not_read_is_noted_once_and_counted(name: str, kind: str, results: Results) -> None:
    with closing(sqlite3.connect(results(name)["run"].path)) as db:
        notes = db.execute("SELECT text FROM note").fetchall()
        counts = db.execute("SELECT value FROM fingerprint WHERE kind = 71").fetchall()
    assert notes == [(f"inputs of class {kind} are not read",)] * 2
    assert counts == [(1,)] * 2  # a row where a value changed


def nothing_grows(sizes: list[tuple[int, int]], shape: Shape) -> None:
    """From the middle to the end: objects of Python, and the process."""
    if len(sizes) >= 4:  # a shape of few optimizer steps tells nothing
        (objects, kib), (objects_then, kib_then) = sizes[len(sizes) // 2], sizes[-1]
        steps = EVERY * (len(sizes) - 1 - len(sizes) // 2)
        assert objects_then - objects <= 200 + shape.kept * steps
        assert kib_then - kib <= 4096


@pytest.mark.deep
def test_read_as_on_a_device(launch: Any) -> None:
    results = results_of(launch, "shapes_on_device")
    for name in SHAPES:
        test_it_trains_as_without_presum_and_nothing_stays(name, results)
        test_every_step_has_its_loss_and_its_own_gradient(name, results)
        if name != "fsdp-summing-one-group":  # layers are compared in host memory only
            test_nothing_is_found_but_what_is_wrong(name, results)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_for_300_steps_and_other_data(
    seed: int, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESUM_SHAPES_LONGER", "15")
    monkeypatch.setenv("PRESUM_SHAPES_SEED", str(seed))
    monkeypatch.setenv("PRESUM_SHAPES_BACKEND", "inductor")
    results = results_of(launch, "shapes")
    for name in SHAPES:
        test_it_trains_as_without_presum_and_nothing_stays(name, results)
        test_every_step_has_its_loss_and_its_own_gradient(name, results)
        for told in results(name)["ranks"]:
            nothing_grows(told["sizes"], SHAPES[name])
