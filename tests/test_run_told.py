# SPDX-License-Identifier: Apache-2.0
"""presum.run: the verdict of a preflight, and what a person would otherwise wonder about."""

from __future__ import annotations

from pathlib import Path

import pytest

import presum
from programs_started import PROGRAM, UNDER, start


def test_ranks_that_train_apart_are_told(tmp_path: Path) -> None:
    first, second = start([*UNDER, "--run", tmp_path, PROGRAM, "--alone"])
    assert "2 ranks were started" in first.stderr and "trains alone" in first.stderr
    assert not second.stderr and not list(tmp_path.iterdir())


def test_preflight_ends_the_program(tmp_path: Path) -> None:
    done = start([*UNDER, "--run", tmp_path, "--preflight", "5", PROGRAM])
    assert {end.returncode for end in done} == {0}
    assert all("epoch 1" not in end.stdout for end in done)


SHORT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed({same} or dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(3, 2) + ({same} or dist.get_rank())).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "same", "code"), [(3, 0, 2), (12, 1, 1)])
def test_a_preflight_that_the_program_ends_before_is_judged_on_what_there_is(
    steps: int, same: int, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "short.py"
    program.write_text(SHORT.format(steps=steps, same=same))
    done = start([*UNDER, "--run", tmp_path / "run", "--preflight", "20", program])
    assert {end.returncode for end in done} == {code}, done[0].stderr
    assert "training ended before 20 preflight steps" in done[0].stderr
    assert presum.load(tmp_path / "run").segments.preflight_exit_code.tolist() == [code]


def test_a_preflight_says_what_it_was_too_short_for_and_may_require_it(tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    program.write_text(SHORT.format(steps=12, same=0))
    words = [*UNDER, "--run", tmp_path / "run", "--preflight", "10"]
    done = start([*words, "--require", "statistics", program])
    assert {end.returncode for end in done} == {2}, done[0].stderr
    assert "facts only: statistics need 26 steps with 2 ranks, and saw 10" in done[0].stderr


BEGIN = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
"""

FSDP1_BESIDE_DDP = """
from torch.distributed.fsdp import FullyShardedDataParallel
class Policy(nn.Sequential): pass
policy = FullyShardedDataParallel(Policy(nn.Linear(4, 2)), device_id=torch.device("cpu"))
critic = DistributedDataParallel(nn.Linear(4, 1))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (policy, critic)]
for step in range(8):
    for model, optimizer in zip((policy, critic), optimizers):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
"""

GROUP_OF_ITS_OWN = """
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future
def done(value):
    future = Future()
    future.set_result(value)
    return _create_work_from_future(future)
class Replicas(dist.ProcessGroup):
    def broadcast(self, tensors, options): return done(tensors)
    def allreduce(self, tensors, options): return done(tensors)
    def allgather(self, outputs, inputs, options):
        outputs[0][0].copy_(inputs[0])
        return done(outputs)
    def getBackendName(self): return "replicas"
model = DistributedDataParallel(nn.Linear(4, 1), process_group=Replicas(0, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (FSDP1_BESIDE_DDP, "presum: rank 0 also trained what is not recorded: Policy (FSDP1"),
        (GROUP_OF_ITS_OWN, "presum: nothing was recorded: Linear (torch.distributed does not know"),
    ],
    ids=["fsdp1-beside-ddp", "group-of-its-own"],
)
def test_the_last_line_names_what_is_not_watched(text: str, last: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(BEGIN + text)
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert {end.returncode for end in done} == {0}, done[0].stderr
    assert done[0].stderr.splitlines()[-1].startswith(last), done[0].stderr
    assert "trained" in done[0].stdout or text is not GROUP_OF_ITS_OWN
