# SPDX-License-Identifier: Apache-2.0
"""The program of docs/start.md, healthy and with its planted mistake, on two ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from programs_started import Ended, presum_command, run_command

START = (Path(__file__).parents[1] / "docs" / "start.md").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    text, *_ = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return path


def train(program: Path, run: str, *arguments: str) -> Ended:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    presum = [sys.executable, "-m", "presum", "run", "--run-folder", run, "--"]
    return run_command([*presum, *torchrun, program, *arguments], cwd=program.parent)


def test_the_program_is_consistent_and_the_planted_mistake_is_named(program: Path) -> None:
    healthy = train(program, "runs/start")
    assert "presum: consistent after 256 steps: no finding" in healthy.stdout + healthy.stderr
    assert presum_command("check", program.parent / "runs/start").returncode == 0
    broken = train(program, "runs/start--broken", "--broken")
    told = broken.stdout + broken.stderr
    assert re.search(r"presum: critical: .*read the same data.* \[duplicate-data\]", told), told
    assert presum_command("check", program.parent / "runs/start--broken").returncode == 1
