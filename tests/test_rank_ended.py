# SPDX-License-Identifier: Apache-2.0
"""A rank that ends before the others, under a launcher that ends the rank that records too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from programs_started import MODULES, UNDER, presum_command, run_command, start

PROGRAM = """
import os, pathlib, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workers.launch import steps_committed, wait_until
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == 40 and dist.get_rank() == {rank}:
        wait_until(lambda: steps_committed(pathlib.Path("{run}")) == 40)
        {end}
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "Rank 1 was killed by SIGKILL after step 39"),
        ("raise ValueError('bad batch')", "Rank 1 ended by ValueError: bad batch, after step 39"),
    ],
    ids=["killed", "raises"],
)
def test_the_rank_is_named_with_its_end(end: str, said: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(end=end, rank=1, run=tmp_path / "run"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    # What a launcher ends within a tenth of a second may be gone before anything is in the run log.
    under = ["--standalone", "--monitor-interval", "2", "-m", "presum.run"]
    done = run_command(
        [*torchrun, *under, "--run-folder", tmp_path / "run", program],
        OMP_NUM_THREADS="1",
        PYTHONPATH=MODULES,
    )
    assert done.returncode == 1
    found = presum_command("findings", tmp_path / "run")
    assert found.returncode == 0, found.stderr
    (first, *_) = [line for line in found.stdout.splitlines() if line.startswith("critical: ")]
    assert first.startswith(f"critical: {said}"), found.stdout + done.stderr[-3000:]
    assert presum_command("check", tmp_path / "run").returncode == 1


def test_a_run_whose_recording_process_is_gone_is_not_called_consistent(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    end = "os.kill(os.getpid(), signal.SIGKILL)"
    program.write_text(PROGRAM.format(end=end, rank=0, run=tmp_path / "run"))
    start([*UNDER, "--run", tmp_path / "run", program], PYTHONPATH=MODULES)
    checked = presum_command("check", tmp_path / "run")
    assert checked.returncode == 2, checked.stdout
    assert "the process that recorded is gone" in checked.stdout
    assert "passed: rank-ended" not in presum_command("findings", tmp_path / "run").stdout
