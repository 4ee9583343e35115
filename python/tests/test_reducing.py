# SPDX-License-Identifier: Apache-2.0
"""attach(reduction=...) on one worker: arguments, leaves, the sampler."""

from __future__ import annotations

import copy
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.reduce.sampler import MicroBatchSampler


@pytest.fixture(scope="module", autouse=True)
def one_worker() -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(3, 2))


def backward(model: nn.Module, value: float) -> None:
    model(torch.full((1, 3), value)).sum().backward()


@pytest.mark.parametrize("method", ["exact", "binned", "fixed32", "fixed64"])
def test_micro_batches_are_added_without_rounding_in_between(
    model: DistributedDataParallel, tmp_path: Path, method: str
) -> None:
    with presum.attach(model, run=tmp_path, reduction=method, quiet=True):
        for value in (1e8, 1.0, -1e8):
            model.require_backward_grad_sync = value < 0
            backward(model, value)
    weight = model.module.weight.grad
    if method == "fixed32":  # 29 bits below the largest leaf
        assert weight is not None and (weight - 1).abs().max() <= 3 * 2.0 ** (27 - 29)
    else:
        assert torch.equal(weight, torch.ones(2, 3))
    assert torch.equal(model.module.bias.grad, torch.full((2,), 3.0))


def test_a_mean_over_micro_batches_is_rounded_once(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"reduction": "exact", "microbatch_mean": True, "quiet": True}
    with presum.attach(model, run=tmp_path, **options):
        with model.no_sync():
            backward(model, 1.0)
            backward(model, 1.0)
        backward(model, 2.0)
    assert torch.equal(model.module.weight.grad, torch.full((2, 3), 4 / 3))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_batches_before_zero_grad_are_forgotten(
    model: DistributedDataParallel, tmp_path: Path, set_to_none: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with presum.attach(model, run=tmp_path, reduction="exact", quiet=True):
        with model.no_sync():
            backward(model, 5.0)
        optimizer.zero_grad(set_to_none=set_to_none)
        with model.no_sync():
            backward(model, 1.0)
        backward(model, 2.0)
    assert torch.equal(model.module.weight.grad, torch.full((2, 3), 3.0))


def test_it_outlives_its_monitor(model: DistributedDataParallel, tmp_path: Path) -> None:
    presum.attach(model, run=tmp_path, reduction="exact", quiet=True).close()
    for value in (1e8, 1.0, -1e8):
        model.require_backward_grad_sync = value < 0
        backward(model, value)
    assert torch.equal(model.module.weight.grad, torch.ones(2, 3))


def test_models_copy_and_pickle(model: DistributedDataParallel, tmp_path: Path) -> None:
    with presum.attach(model, run=tmp_path, reduction="exact", quiet=True):
        inside = copy.deepcopy(model.module)
        assert pickle.loads(pickle.dumps(model._forward_hooks))
    inside(torch.ones(1, 3)).sum().backward()
    assert torch.equal(inside.weight.grad, torch.ones(2, 3))


def test_no_other_hook_may_follow(model: DistributedDataParallel, tmp_path: Path) -> None:
    with (
        presum.attach(model, run=tmp_path, reduction="exact", quiet=True),
        pytest.raises(RuntimeError, match="register_comm_hook"),
    ):
        model.register_comm_hook(None, fp16_compress_hook)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduction": "kahan"}, "must be one of exact, binned, fixed32, fixed64, not 'kahan'"),
        ({"microbatch_mean": True}, "microbatch_mean needs reduction"),
        ({"reduction": "exact", "mode": "hook", "gram_every": 2}, "gram_every does not go with"),
        ({"reduction": "exact", "mode": "manual"}, "use presum.reduce there"),
        ({"audit_every": 0}, "audit_every must be"),
        ({"audit_elements": 0, "audit_every": 1}, "audit_elements must be"),
    ],
)
def test_what_does_not_go_together_is_one_clear_line(
    model: DistributedDataParallel, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        presum.attach(model, run=tmp_path, **arguments)
    assert "\n" not in str(caught.value)


def test_doubles_need_the_exact_sum(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(3, 2).double())
    with pytest.raises(ValueError, match="'fixed64' cannot sum float64"):
        presum.attach(model, run=tmp_path, reduction="fixed64")


def test_a_hook_that_is_there_already_is_not_replaced(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    model.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(ValueError, match="has a communication hook already"):
        presum.attach(model, run=tmp_path, reduction="exact")


def test_workers_share_the_same_micro_batches() -> None:
    def steps(workers: int) -> list[list[list[int]]]:
        """Each step's micro-batches of all workers."""
        samplers = [
            MicroBatchSampler(
                range(53), size=2, micro_batches=4, workers=workers, rank=rank, shuffle=True, seed=7
            )
            for rank in range(workers)
        ]
        for sampler in samplers:
            sampler.set_epoch(3)
        own = [list(sampler) for sampler in samplers]
        assert all(len(sampler) == len(found) for sampler, found in zip(samplers, own, strict=True))
        each = 4 // workers
        return [[b for o in own for b in o[i : i + each]] for i in range(0, len(own[0]), each)]

    assert steps(1) == steps(2) == steps(4) and len(steps(1)) == 6
    assert len({i for step in steps(1) for batch in step for i in batch}) == 48


@pytest.mark.parametrize(
    "arguments",
    [{"size": 0, "micro_batches": 4}, {"size": 1, "micro_batches": 3}, {"size": 1, "rank": 2}],
)
def test_micro_batches_that_cannot_be_shared_are_refused(arguments: dict[str, int]) -> None:
    whole = {"micro_batches": 4, "workers": 2, "rank": 0, **arguments}
    with pytest.raises(ValueError, match="MicroBatchSampler"):
        MicroBatchSampler(range(8), **whole)
