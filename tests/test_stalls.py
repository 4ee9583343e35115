# SPDX-License-Identifier: Apache-2.0
"""Jobs that stand still in planted ways are explained; ones that only pause are not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import presum
from programs_started import MODULES, run_command, run_commands
from workers.stalls import CLEAN, EXPECTED, PATIENCE, WAYS

AT_ONCE = 2


def rows_of(folder: Path, ways: list[str], *, tries: int = 1) -> dict[str, list[dict[str, Any]]]:
    """By way, what came of each try."""

    every = [way for way in ways for _ in range(tries)]
    parts = [every[i::AT_ONCE] for i in range(AT_ONCE)]
    out: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    commands = [[sys.executable, "-m", "workers.stalls", folder, *part] for part in parts]
    for done in run_commands(commands, PYTHONPATH=MODULES):
        assert done.returncode == 0, done.stderr
        for key, row in json.loads(done.stdout).items():
            out[key.partition(":")[0]].append(row)
    return out


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = rows_of(tmp_path_factory.mktemp("stalls"), list(WAYS))
    return {way: rows[0] for way, rows in found.items()}


def is_explained(way: str, row: dict[str, Any]) -> bool:
    ranks, part = EXPECTED[way]
    return row["ranks"] == ranks and part in row["sentence"] and row["seconds"] <= PATIENCE


@pytest.mark.parametrize("way", EXPECTED)
def test_a_stuck_job_is_explained(way: str, rows: dict[str, dict[str, Any]]) -> None:
    row = rows[way]
    assert is_explained(way, row), row
    assert row["sentence"] in row["said"], "it is said on the terminal"
    assert row["said"].count("The job stalled") == 1, "once"


@pytest.mark.parametrize("way", CLEAN)
def test_what_only_pauses_is_no_stall(way: str, rows: dict[str, dict[str, Any]]) -> None:
    row = rows[way]
    assert row["sentence"] == ""
    assert "stalled" not in row["said"]
    assert [(over, harmless) for _, _, over, harmless, _ in row["all"]] == [(1, 1)]
    assert re.search(r"consistent after \d+ steps", row["said"])


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_ten_tries_of_each_way(tmp_path: Path) -> None:
    """Nine of ten ways at least, each in all of its ten tries."""
    found = rows_of(tmp_path, list(EXPECTED), tries=10)
    explained = {way: sum(is_explained(way, row) for row in rows) for way, rows in found.items()}
    print(explained)
    assert sum(count == 10 for count in explained.values()) >= 0.9 * len(EXPECTED), explained


ENDS = """
import os, sys, time, torch, torch.distributed as dist, presum
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
record = presum.Record(stall_seconds=1.5, on_stall=sys.argv[2])
presum.attach(model, optimizer=optimizer, run=sys.argv[1], record=record)
for step in range(1000):
    if step == 4 and dist.get_rank() == 1:
        try:
            while True:
                time.sleep(0.05)
        except presum.StallError:
            print("rank 1 was told")
            raise
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_stuck_job_may_be_ended(how: str, tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text(ENDS, encoding="utf-8")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run_command([*words, program, tmp_path / "run", how], OMP_NUM_THREADS="1")
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "ends.py:" in said and "The job stalled" in said, said
    assert (how == "raise") == ("rank 1 was told" in said), said
    if how == "exit":  # written before any rank ends, as the launcher ends all with the first
        (why,) = presum.load(tmp_path / "run").segments.incomplete
        assert why.startswith("it was stalled: Rank 1 is in ends.py"), why
