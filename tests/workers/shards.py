# SPDX-License-Identifier: Apache-2.0
"""One worker of FSDP2 and HSDP trainings whose reductions do what they should, or do not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

import presum
from workers.launch import QUIET, main, write_json

STEPS = 30
NORM_AT = 25


ReduceScatter: Any = getattr(_fsdp_collectives, "ReduceScatter", None)  # torch 2.9 and newer


class Broken(ReduceScatter or object):  # type: ignore[misc]
    """torch's own, but for what it is given and what it gives."""

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.empty(*args, **kwargs)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, **_: Any) -> Any:
        self.before(input_tensor)
        _fsdp_collectives.DefaultReduceScatter()(output_tensor, input_tensor, group, op)
        self.after(output_tensor, input_tensor.view(group.size(), -1)[group.rank()])

    def before(self, whole: torch.Tensor) -> None: ...

    def after(self, mean: torch.Tensor, own: torch.Tensor) -> None: ...


class Kept(Broken):
    def after(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        mean.copy_(own)


class Summed(Broken):
    def after(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        mean.mul_(dist.get_world_size())


class WithoutOne(Broken):
    def before(self, whole: torch.Tensor) -> None:
        if dist.get_rank() == 2:
            whole.zero_()


class MadeInfinite(Broken):
    def after(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        if dist.get_rank() == 1:
            mean[0] = torch.inf


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
MESHES = {"fsdp": ((4,), ("shard",)), "hsdp": ((2, 2), ("replicate", "shard"))}
# Method, then what is otherwise; the layer of a broken reduction: None is all of them.
CASES: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "hsdp": {"mesh": "hsdp"},
    "bf16": {"policy": BF16},
    "reductions-added-up": {"micro": 3},
    "all-reduced-later": {"mesh": "hsdp", "micro": 2, "later": True},
    "divided-by-one": {"divisor": 1.0},
    "another-dimension": {"dim": 1},
    "kept": {"broken": Kept},
    "one-layer-summed": {"broken": Summed, "layer": 1},
    "one-layer-of-hsdp-without-one": {"mesh": "hsdp", "broken": WithoutOne, "layer": 1},
    "infinite": {"broken": MadeInfinite, "layer": 1},
}
if ReduceScatter is None:
    CASES = {name: case for name, case in CASES.items() if "broken" not in case}


def model_of(case: dict[str, Any]) -> Any:
    shape, names = MESHES[case.get("mesh", "fsdp")]
    torch.manual_seed(0)
    wide = 32 if "dim" in case else 29  # 29 rows are no equal shards; another dimension wants them
    layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, wide), nn.Linear(wide, 4))
    how: dict[str, Any] = {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=names)}
    if "policy" in case:
        how["mp_policy"] = case["policy"]
    if "dim" in case:
        how["shard_placement_fn"] = lambda p: torch.distributed.tensor.Shard(p.dim() - 1)
    for part in (*(layers[i] for i in (0, 2, 3)), layers):
        fully_shard(part, **how)
    return layers


def change(layers: Any, case: dict[str, Any]) -> None:
    if "divisor" in case:
        layers.set_gradient_divide_factor(case["divisor"])
        layers.set_force_sum_reduction_for_comms(True)
    if "broken" in case:
        parts = [layers[0], layers[2], layers[3]]
        only = case.get("layer")
        for part in parts if only is None else [parts[only]]:
            part.set_custom_reduce_scatter(case["broken"]())


def norm_of(layers: Any, case: dict[str, Any]) -> float:
    """Of the reduced gradient: the shards' squares, added up over the ranks."""
    shards = [p.grad.to_local().double() for p in layers.parameters()]
    squares = torch.stack([shard.square().sum() for shard in shards]).sum()
    dist.all_reduce(squares)
    replicas = MESHES[case.get("mesh", "fsdp")][0][0] if case.get("mesh") == "hsdp" else 1
    return math.sqrt(float(squares) / replicas)


def train(case: dict[str, Any], run: Path, rank: int) -> None:
    layers = model_of(case)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    monitor = presum.attach(layers, optimizer=optimizer, run=run, record=QUIET)
    change(layers, case)
    average = [p.detach().clone() for p in layers.parameters()]  # each rank's part
    if "broken" not in case:
        monitor.watch("average", average)
    generator = torch.Generator().manual_seed(rank)
    micro = case.get("micro", 1)
    norms: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for k in range(micro):
            if "later" in case:
                layers.set_requires_all_reduce(k == micro - 1)
            given, wanted = (torch.randn(16, n, generator=generator) for n in (16, 4))
            (layers(given) - wanted).square().mean().backward()
        if step == NORM_AT:
            norms.append(norm_of(layers, case))
        optimizer.step()
        with torch.no_grad():
            for part, p in zip(average, layers.parameters(), strict=True):
                part.lerp_(p, 0.1)
    monitor.close()
    if rank == 0:
        write_json(run.with_suffix(".json"), norms[0])
    dist.barrier()


def work(rank: int, _world: int, out: Path) -> None:
    for name, case in CASES.items():
        train(case, out / name, rank)


if __name__ == "__main__":
    main(work)
