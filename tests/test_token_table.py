# SPDX-License-Identifier: Apache-2.0
"""The table of docs/tokens.md, of the frameworks that are installed: its numbers are those of the
parameters' gradients, and presum's weights add up to the same."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import presum
from markdown_tables import rows_of
from workers.token_table import PROGRAMS

pytestmark = pytest.mark.deep
DOCUMENT = Path(__file__).parents[1] / "docs" / "tokens.md"
# The row of each program: how the first two cells begin.
ROWS = {
    "torchtune": ("a loop as torchtune's", ""),
    "nanogpt": ("a loop as nanoGPT's", ""),
    "accelerate-mean": ("Accelerate", "accumulate with a mean"),
    "accelerate-recipe": ("Accelerate", "its recipe"),
    "trainer": ("Trainer", "default"),
    "trainer-own-tokens": ("Trainer", "average_tokens_across_devices=False"),
    "trainer-without-count": ("Trainer", "model without"),
    "trainer-overridden": ("Trainer", "compute_loss overridden"),
    "trainer-function": ("Trainer", "compute_loss_func"),
    "lightning": ("Lightning", "accumulate_grad_batches=2"),
}


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("token_table", 2).out  # type: ignore[no-any-return]


def cells(name: str) -> list[str]:
    program = ""
    for row in rows_of(DOCUMENT.read_text(encoding="utf-8"), "## What frameworks do"):
        program = row[0] or program
        begins = zip((program, row[1]), ROWS[name], strict=True)
        if all(cell.startswith(begin) for cell, begin in begins):
            return row
    raise AssertionError(name)


def documented(cell: str) -> list[float]:
    """Of the first update and of the last window, if it is given."""
    numbers = cell.partition("(")[0].split(",")
    return [float(number) for number in numbers if number.strip() != "-"]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_row_is_what_gradients_show(out: Path, name: str) -> None:
    updates = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    *_, ratios, totals = cells(name)
    for update, ratio, total in zip(updates, documented(ratios), documented(totals), strict=True):
        assert max(update) / min(update) == pytest.approx(ratio, rel=0.05)
        assert sum(update) == pytest.approx(total, rel=0.005)


@pytest.mark.parametrize("name", sorted({*PROGRAMS} - {"torchtune"}))
def test_presum_measures_the_same(out: Path, name: str) -> None:
    """Torchtune's factor is applied later."""
    totals = documented(cells(name)[-1])
    workers = presum.load(out / name).workers
    measured = (workers.targets * workers.token_weight / 2).groupby(workers.step).sum()
    assert measured.tolist() == pytest.approx(totals, rel=0.005)


def test_the_versions_are_those_of_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for package, name in (
        ("transformers", "Trainer, transformers"),
        ("accelerate", "Accelerate"),
        ("lightning", "Lightning"),
    ):
        major, minor, *_ = version(package).split(".")
        assert f"{name} {major}.{minor} " in text
