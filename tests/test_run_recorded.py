# SPDX-License-Identifier: Apache-2.0
"""presum.run around a program that knows nothing of it: what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import presum
from programs_started import PROGRAM, UNDER, WORLD, start


def test_each_model_has_a_section_and_its_loss_is_found(tmp_path: Path) -> None:
    done = start([*UNDER, "--run", tmp_path, PROGRAM])
    run = presum.load(tmp_path)
    assert list(run.steps.groupby("module").step.count()) == [16, 16]
    assert run.workers.loss.notna().all() and (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    last = run.workers[run.workers.module == run.workers.module.max()].groupby("rank").loss.last()
    printed = [float(end.stdout.split()[-1]) for end in done]
    assert any(abs(last[0] - value) < 1e-6 for value in printed)


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_trainings_of_one_process_are_freed_and_stay_apart(keep: list[str], tmp_path: Path) -> None:
    program = PROGRAM.with_name("six_trainings.py")
    plain = start([program, *keep])
    watched = start([*UNDER, "--run", tmp_path, program, *keep])
    for before, after in zip(plain, watched, strict=True):
        assert before.stdout == after.stdout and after.stdout.count("alive") == 5
        assert before.returncode == after.returncode == 0
    run = presum.load(tmp_path)
    assert run.steps.groupby("module").step.count().tolist() == [10, 12, 14, 16, 10, 10]
    assert (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    sampled = run.facts[run.facts.key == "sampler"]
    assert sorted(sampled.module.unique()) == [0, 1, 2, 3]
    seeds = sampled.value.str.extract(r"seed=(\d+)")[0].astype(int)
    assert (seeds == sampled.module).all()


@pytest.mark.parametrize("forward", ["model.module(x)", "model.module.layer(x)"])
def test_a_forward_around_the_wrapper_is_recorded_and_found(forward: str, tmp_path: Path) -> None:
    program = tmp_path / "around.py"
    program.write_text(AROUND.replace("FORWARD", forward))
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert [end.returncode for end in done] == [0, 0]
    run = presum.load(tmp_path / "run")
    assert len(run.steps) >= 28 and (run.steps.workers == WORLD).all()
    (finding,) = (found for found in run.findings if found.severity == "critical")
    assert finding.check == "no-reduction"


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
model.module(torch.ones(1, 4))  # before there is an optimiser
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(30):
    x = torch.randn(4, 4)
    optimizer.zero_grad()
    FORWARD.square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
