# SPDX-License-Identifier: Apache-2.0
"""What is checked on a machine with a GPU, as far as the host goes; the table of its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu_check.__main__ import LIMITS, SECONDS
from gpu_check.table import BEGIN, END, with_table
from programs_started import run_command

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "gpu_check"]


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dry")
    done = run_command([*COMMAND, "--dry", "--out", out], timeout=SECONDS, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize("section", LIMITS)
def test_every_section_runs_on_the_host(dry: Path, section: str) -> None:
    told = json.loads((dry / f"{section}.json").read_text())
    assert told["ok"] and told["rows"] and told["dry"]


def test_sections_that_ran_on_a_gpu_become_a_table(dry: Path) -> None:
    on = {"device": "NVIDIA X", "torch": "2.13.0", "cuda": "12.9"}
    rows = [
        {"what": "a | b", "value": [0.9, 0.85, 0.95], "ok": True},
        {"what": "c", "value": "d", "ok": False},
    ]
    sections = [{"section": "speed", "rows": rows, "ok": False, "on": on}]
    text = with_table(f"x\n{BEGIN}old\n{END}y\n", sections)
    assert text.startswith("x\n" + BEGIN) and text.endswith(END + "y\n") and "old" not in text
    assert "| speed | a \\| b | 0.9 (0.85 to 0.95) |  |" in text
    assert "| speed | c | d | **not as wanted** |" in text
    table = [sys.executable, "-m", "gpu_check.table", dry]
    assert run_command(table, PYTHONPATH=str(ROOT)).returncode == 2  # it ran dry


def test_bad_use_is_said(tmp_path: Path) -> None:
    command = [*COMMAND, "--wheels", tmp_path, "--out", tmp_path / "out"]
    done = run_command(command, PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "lacks presum for this Python" in done.stderr.splitlines()[-1]
