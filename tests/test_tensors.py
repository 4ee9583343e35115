# SPDX-License-Identifier: Apache-2.0
"""Inputs that are not plain tensors: training ends as without presum, and is recorded."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import presum
from workers.tensors import CASES, STEPS

WORLD = 4


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("tensors", WORLD).out


def notes(run: Path) -> list[str]:
    with closing(sqlite3.connect(run / "presum.db")) as db:
        return [text for (text,) in db.execute("SELECT text FROM note ORDER BY rank")]


@pytest.mark.parametrize("case", [*CASES, "tensor-parallel"])
def test_training_is_the_same(out: Path, case: str) -> None:
    for rank in range(WORLD):
        result = json.loads((out / f"{case}.{rank}.json").read_text())
        assert result["plain"] == result["watched"]


@pytest.mark.parametrize("case", CASES)
def test_every_step_of_every_worker_is_recorded(out: Path, case: str) -> None:
    workers = presum.load(out / case).workers
    assert len(workers) == WORLD * STEPS
    assert workers.grad_norm.gt(0).all() and workers.loss.notna().all()


def test_each_rank_s_part_of_a_distributed_tensor_is_its_own(out: Path) -> None:
    """The same numbers as where the part itself is given."""
    plain, distributed = (presum.load(out / case).workers for case in ("plain", "distributed"))
    assert plain.grad_norm.tolist() == distributed.grad_norm.tolist()
    assert plain.tokens.tolist() == distributed.tokens.tolist() == [2] * len(plain)
    assert presum.load(out / "unnamed-labels").workers.tokens.tolist() == [2] * len(plain)


@pytest.mark.parametrize(("case", "kind"), [("nested", "Tensor"), ("marked", "Marked")])
def test_what_is_not_read_is_noted_once_and_counted(out: Path, case: str, kind: str) -> None:
    assert notes(out / case) == [f"inputs of class {kind} are not read"] * WORLD
    with closing(sqlite3.connect(out / case / "presum.db")) as db:
        counts = db.execute("SELECT value FROM fingerprint WHERE kind = 71").fetchall()
    assert counts == [(1,)] * WORLD  # a row where a value changed


def test_tensor_parallel_ranks_share_a_step_with_those_of_their_part(out: Path) -> None:
    steps = presum.load(out / "tensor-parallel").steps
    assert steps.groupby("shard").step.count().tolist() == [STEPS] * 2
    assert (steps.workers == 2).all() and steps.grad_norm_mean.gt(0).all()
