# SPDX-License-Identifier: Apache-2.0
"""Parameters and inputs in parts: FSDP2, with tensor parallelism, and DTensors as inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shapes.accumulation import loss_of
from shapes.training import SEED, WIDTH, Shape, Training, network, sgd


def whole(model: nn.Module, like: nn.Module) -> nn.Module:
    """``like`` with the parameters of a model that all workers hold in parts. A collective."""
    bare = copy.deepcopy(like)
    for parameter, sharded in zip(bare.parameters(), model.parameters(), strict=True):
        assert isinstance(sharded, DTensor)
        parameter.data.copy_(sharded.full_tensor().detach())
    return bare


def fsdp(run: Training) -> None:
    like = network()
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    run.models.append(model)
    optimizer = sgd(model)
    run.watch(model, optimizer)
    for x in run.batches():
        run.step(model, optimizer, loss_of(x), bare=whole(model, like))


def summing(*names: str) -> Callable[[Training], None]:
    """The sums of some of the groups are not divided by the number of ranks."""

    def train(run: Training) -> None:
        like = network()
        model = network()
        for name in ("0", "3"):
            fully_shard(model.get_submodule(name))
        fully_shard(model)
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
                if name in names:
                    module.set_gradient_divide_factor(1.0)
        run.models.append(model)
        optimizer = sgd(model)
        run.watch(model, optimizer)
        for x in run.batches():
            run.step(model, optimizer, loss_of(x), bare=whole(model, like))

    return train


def fsdp_accumulating(run: Training) -> None:
    """Three passes, of which the last one reduces."""
    like = network()
    model = network()
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    run.models.append(model)
    optimizer = sgd(model)
    run.watch(model, optimizer)
    for x in run.batches():
        parts = [loss_of(x * factor) for factor in (1.0, 0.5, -2.0)]
        run.expect(model, parts, bare=whole(model, like))
        optimizer.zero_grad()
        for place, loss in enumerate(parts):
            model.set_requires_gradient_sync(place == 2)
            loss(model).backward()
        optimizer.step()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, 16)
        self.down = nn.Linear(16, WIDTH)

    def forward(self, x: Any) -> Any:
        out = self.down(torch.tanh(self.up(x)))
        return out.to_local() if isinstance(out, DTensor) else out


def tensor_parallel(run: Training) -> None:
    """FSDP2 over halves of the workers, and each model in two parts: what a worker hands over is
    the gradient of its part."""
    like, model = Block(), Block()
    mesh = init_device_mesh("cpu", (run.shape.world // 2, 2), mesh_dim_names=("dp", "tp"))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    run.models.append(model)
    optimizer = sgd(model)
    run.watch(model, optimizer, process_group=mesh.get_group("dp"))
    split = {"up.weight": 0, "up.bias": 0, "down.weight": 1}

    def part(name: str, gradient: torch.Tensor) -> torch.Tensor:
        half = mesh.get_local_rank("tp")
        return gradient.chunk(2, split[name])[half] if name in split else gradient

    draws = torch.Generator().manual_seed(1000 * (SEED + 1) + mesh.get_local_rank("dp"))
    for _ in range(run.steps):
        x = torch.randn(4, WIDTH, generator=draws)
        run.expect(model, [loss_of(x)], bare=whole(model, like), part=part)
        optimizer.zero_grad()
        loss_of(distribute_tensor(x, mesh["tp"], [Replicate()]))(model).backward()
        optimizer.step()


class TakesParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: Any, labels: Any) -> torch.Tensor:
        kept = labels.to_local() != -100
        return self.inside(x.to_local())[kept]  # type: ignore[no-any-return]


def distributed_inputs(run: Training) -> None:
    """Each worker's rows and labels are its part of one tensor over all."""
    mesh = init_device_mesh("cpu", (run.shape.world,))
    model, optimizer = run.trained(TakesParts())
    labels = DTensor.from_local(torch.tensor([3, -100, 1, 2]), mesh, [Shard(0)])
    for own in run.batches():
        x = DTensor.from_local(own, mesh, [Shard(0)])
        run.step(model, optimizer, lambda net, x=x: net(x, labels=labels).square().mean())


SHAPES = [
    Shape("fsdp", fsdp),
    Shape("fsdp-accumulating", fsdp_accumulating),
    Shape("fsdp-summing", summing("0", "3")),
    Shape("fsdp-summing-one-group", summing("0"), findings=frozenset({"reduction-scale"})),
    Shape("fsdp-tensor-parallel", tensor_parallel, world=4),
    Shape("distributed-inputs", distributed_inputs),
]
