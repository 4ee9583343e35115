# SPDX-License-Identifier: Apache-2.0
"""Results for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fault_outcomes import finding, judged
from faults import table
from faults.catalog import FAULTS
from faults.judge import Outcome
from faults.sightings import Result
from presum.errors import UserError


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], "-"), ([4], "4"), ([0, 1, 2, 3, 8], "0-3,8"), ([2, 6], "2,6"), ([5, 6], "5-6")],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert table.ranges(ranks) == text


def outcomes() -> list[Outcome]:
    everyone = list(range(8))
    return [
        judged("forward-through-module", finding("no-reduction", "critical", everyone)),
        judged("nan-gradient", finding("zero-gradient", "critical", [5])),
        judged("no-set-epoch", twin=Result([finding("rank-outlier", "warning", [1])], [])),
    ]


def test_the_table_says_what_went_wrong() -> None:
    text = table.render(outcomes())
    lines = {line.split()[0]: line for line in text.partition("\n\n")[0].splitlines()}
    assert "no-reduction 0-7" in lines["forward-through-module"]
    assert "NO" in lines["nan-gradient"]
    assert "not found" in lines["no-set-epoch"]
    assert "FALSE ALARM" in lines["no-set-epoch"]
    assert "no-set-epoch (8): its clean twin reports rank-outlier" in text
    left = len(FAULTS) - 3
    assert f"1 of 3 runs with a fault: right check and ranks; {left} of the" in text
    assert "not right: no-set-epoch (8), nan-gradient" not in text  # the order is the table's
    assert "not right: nan-gradient (8), no-set-epoch (8)" in text
    assert "not injected" not in text
    assert "pytorch/pytorch#190626" not in text


def test_the_whole_table_lists_what_is_not_injected() -> None:
    text = table.render([judged(f.name) for f in FAULTS])
    assert "pytorch/pytorch#190626" in text
    assert f"0 of {len(FAULTS)} runs with a fault: right check and ranks; of the 30" in text
    assert "left out" not in text


def test_json_has_what_the_table_has() -> None:
    whole = json.loads(json.dumps(table.as_json(outcomes(), seed=1)))
    assert whole["passed"] is False
    first, second, third = whole["faults"]
    assert first["row"] == 12
    assert first["passed"] is True
    assert second["expected_check"] == "nonfinite-gradient"
    assert second["check"] == "zero-gradient"
    assert third["check"] is None
    assert third["delay"] is None
    assert third["false_alarms"] == ["rank-outlier"]
    assert (whole["not_injected"], whole["left_out"]) == ([], len(FAULTS) - 3)
    every = table.as_json([judged(f.name) for f in FAULTS], seed=1)
    assert {a["row"] for a in every["not_injected"]} == {None, 26, 29}
    assert every["left_out"] == 0


def test_reports_go_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    with pytest.raises(UserError, match="needs all faults, but"):
        table.write_into(page, outcomes())
    everyone = [judged(f.name) for f in FAULTS if f.name != "forward-through-module"]
    table.write_into(page, [*everyone, outcomes()[0]])
    text = page.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n| public report | what is broken |")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "old" not in text and "| not found |" in text
    assert text.count("\n| ") == len(table.REPORTED) + 2
    (row,) = [line for line in text.splitlines() if "minimind#853" in line]
    assert row.endswith("| `no-reduction` | 39 |")
    page.write_text("no marks")
    with pytest.raises(UserError, match="needs the lines"):
        table.write_into(page, everyone)


def test_the_whole_table_has_a_row_a_fault() -> None:
    text = table.markdown(outcomes())
    assert text.startswith("| fault | model |")
    assert "| as `zero-gradient` 5 |" in text and "| not found |" in text
