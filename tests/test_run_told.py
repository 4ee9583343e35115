# SPDX-License-Identifier: Apache-2.0
"""presum.run: the verdict of a preflight, and what a person would otherwise wonder about."""

from __future__ import annotations

from pathlib import Path

import pytest

import presum
from programs_started import PROGRAM, UNDER, start


def test_ranks_that_train_apart_are_told(tmp_path: Path) -> None:
    first, second = start([*UNDER, "--run", tmp_path, PROGRAM, "--alone"])
    assert "2 ranks were started" in first.stderr and "trains on its own" in first.stderr
    assert not second.stderr and not list(tmp_path.iterdir())


def test_one_process_without_ddp_is_told_that_nothing_was_recorded(tmp_path: Path) -> None:
    (done,) = start([*UNDER, PROGRAM, "--alone"], world=1)
    assert done.returncode == 0 and "nothing was recorded" in done.stderr


def test_preflight_ends_the_program(tmp_path: Path) -> None:
    done = start([*UNDER, "--run", tmp_path, "--preflight", "5", PROGRAM])
    assert {end.returncode for end in done} == {0}
    assert all("epoch 1" not in end.stdout for end in done)


SHORT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(3, 2) + ({same} or dist.get_rank())).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "same", "code"), [(3, 0, 2), (12, 0, 0), (12, 1, 1)])
def test_a_preflight_that_the_program_ends_before_is_judged_on_what_there_is(
    steps: int, same: int, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "short.py"
    seed = "torch.manual_seed(7 if SAME else dist.get_rank())\n".replace("SAME", str(same))
    text = SHORT.format(steps=steps, same=same)
    program.write_text(text.replace("model = ", seed + "model = "))
    done = start([*UNDER, "--run", tmp_path / "run", "--preflight", "20", program])
    assert {end.returncode for end in done} == {code}, done[0].stderr
    assert "training ended before 20 preflight steps" in done[0].stderr
    assert presum.load(tmp_path / "run").segments.preflight_exit_code.tolist() == [code]


def test_a_preflight_says_what_it_was_too_short_for_and_may_require_it(tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    seeded = "torch.manual_seed(dist.get_rank())\nmodel = "
    program.write_text(SHORT.format(steps=12, same=0).replace("model = ", seeded))
    words = [*UNDER, "--run", tmp_path / "run", "--preflight", "10"]
    for required, code in (([], 0), (["--require", "statistics"], 2)):
        done = start([*words, *required, program])
        assert {end.returncode for end in done} == {code}, done[0].stderr
        said = "facts only: statistics need 26 steps with 2 workers, and saw 10"
        assert said in done[0].stderr
