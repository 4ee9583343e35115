# SPDX-License-Identifier: Apache-2.0
"""presum.run around a program that knows nothing of it: what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from verdicts import found_of_training

import presum
from programs_started import PROGRAM, UNDER, WORLD, start


def test_trainings_of_one_process_are_freed_and_stay_apart(tmp_path: Path) -> None:
    program = PROGRAM.with_name("six_trainings.py")
    plain = start([program])
    watched = start([*UNDER, "--run", tmp_path, program])
    for before, after in zip(plain, watched, strict=True):
        assert before.stdout == after.stdout and after.stdout.count("alive") == 5
        assert before.returncode == after.returncode == 0
    run = presum.load(tmp_path)
    assert run.steps.groupby("model_index").step.count().tolist() == [10, 12, 14, 16, 10, 10]
    assert (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    sampled = run.facts[run.facts.key == "sampler"]
    assert sorted(sampled.model_index.unique()) == [0, 1, 2, 3]
    seeds = sampled.value.str.extract(r"seed=(\d+)")[0].astype(int)
    assert (seeds == sampled.model_index).all()


def test_a_forward_around_the_wrapper_is_recorded_and_found(tmp_path: Path) -> None:
    program = tmp_path / "around.py"
    program.write_text(AROUND)
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert [end.returncode for end in done] == [0, 0]
    run = presum.load(tmp_path / "run")
    assert len(run.steps) >= 28 and (run.steps.workers == WORLD).all()
    (finding,) = (found for found in run.findings if found.severity == "critical")
    assert finding.check == "no-reduction"


@pytest.mark.parametrize("how", ["copied", "sharded"])
def test_an_optimizer_of_before_is_named(how: str, tmp_path: Path) -> None:
    program = tmp_path / "before.py"
    program.write_text(BEFORE)
    done = start([*UNDER, "--run", tmp_path / "run", program, how])
    assert [end.returncode for end in done] == [0, 0]
    found = [one for one in presum.load(tmp_path / "run").findings if one.severity == "critical"]
    assert [one.check for one in found] == ["no-progress"]
    assert found[0].first_step <= 1 and found[0].ranks == [0, 1]
    assert "holds none of this model's parameters" in done[0].stderr
    assert "inconsistent after 10 steps" in done[0].stderr


def test_a_replicated_module_is_recorded(tmp_path: Path) -> None:
    program = PROGRAM.with_name("replicated.py")
    for name in ("right", "scaled"):
        ends = start([*UNDER, "--run", tmp_path / name, program, name])
        assert [end.returncode for end in ends] == [0] * WORLD
    run = presum.load(tmp_path / "right")
    assert (run.steps.workers == WORLD).all() and len(run.steps) == 40
    assert [one.title for one in found_of_training(run)] == []
    scaled = found_of_training(presum.load(tmp_path / "scaled"))
    assert ("loss-mismatch", "warning") in [(one.check, one.severity) for one in scaled]


BEFORE = """
import copy, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "sharded":
    fully_shard(model)
else:
    model = DistributedDataParallel(copy.deepcopy(model))
torch.manual_seed(1 + dist.get_rank())
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""

AROUND = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
model.module(torch.ones(1, 4))  # before there is an optimizer
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(30):
    x = torch.randn(4, 4)
    optimizer.zero_grad()
    model.module.layer(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
