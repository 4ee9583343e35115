# SPDX-License-Identifier: Apache-2.0
"""What is checked on a machine with a GPU, as far as the host goes; the table of its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from gpu_check.__main__ import LIMITS, main
from gpu_check.table import BEGIN, END, with_table
from programs_started import run_command

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "gpu_check"]


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dry")
    done = run_command([*COMMAND, "--dry", "--out", out], PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize("section", LIMITS)
def test_every_section_runs_on_the_host(dry: Path, section: str) -> None:
    told = json.loads((dry / f"{section}.json").read_text())
    assert told["ok"] and told["rows"] and told["dry"]


def test_sections_that_ran_on_a_gpu_become_a_table(dry: Path) -> None:
    on = {"device": "NVIDIA X", "torch": "2.13.0", "presum": "0.1.0", "date": "2026-01-02"}
    rows = [{"what": "a | b", "value": 0.9, "ok": True}, {"what": "c", "value": "d", "ok": False}]
    sections = [{"section": "speed", "rows": rows, "done": False, "on": on}]
    text = with_table(f"x\n{BEGIN}old\n{END}y\n", sections)
    assert text.startswith("x\n" + BEGIN) and text.endswith(END + "y\n") and "old" not in text
    machine = "NVIDIA X, torch 2.13.0, presum 0.1.0, 2026-01-02"
    assert f"| {machine} | speed | a \\| b | 0.9 |  |" in text
    assert f"| {machine} | speed | c | d | **not as wanted** |" in text
    assert f"| {machine} | speed | the rest | not done in its time |  |" in text
    assert "|  | kernels |  | not tried |  |" in text
    table = [sys.executable, "-m", "gpu_check.table", dry]
    assert run_command(table, PYTHONPATH=str(ROOT)).returncode == 2  # it ran dry


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run_command([*COMMAND, "--out", tmp_path / "out"], PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("gpu_check: torch sees no CUDA device")
    assert not (tmp_path / "out").exists()


def test_where_no_wheel_fits_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(
        sys, "argv", ["gpu_check", "--wheels", str(tmp_path), "--out", str(tmp_path)]
    )
    assert main() == 2
    assert "has no wheel of presum for this Python" in capfd.readouterr().err
