# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings whose reduction is audited; names of cases follow the folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultReduceScatter,
    ReduceScatter,
)
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import QUIET, main

STEPS = 12
AUDIT_EVERY = 2
WHOLE = presum.Audit(AUDIT_EVERY, elements=None)


def loses_its_end(_state: Any, bucket: Any) -> Future[torch.Tensor]:
    """As in NVIDIA/nccl#1950: the last elements come out zero."""
    buffer = bucket.buffer()
    buffer.div_(torch.distributed.get_world_size())
    work = torch.distributed.all_reduce(buffer, async_op=True)

    def lose(done: Future[Any]) -> torch.Tensor:
        value: torch.Tensor = done.value()[0]
        value[-7:] = 0
        return value

    return work.get_future().then(lose)  # type: ignore[no-any-return]


loses_its_end.__annotations__.clear()  # DDP compares them with types, and these are texts


class LosesItsEnd(ReduceScatter):
    """The same in FSDP2's reduce-scatter."""

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.empty(*args, **kwargs)

    def __call__(self, output_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = DefaultReduceScatter()(output_tensor, *args, **kwargs)
        output_tensor[-7:] = 0
        return done


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "exact": {"attach": {"reduction": "exact"}},
    "compressed": {"hook": fp16_compress_hook},
    "broken": {"hook": loses_its_end, "attach": {"audit": WHOLE}},
    "fsdp": {"fsdp": True},
    "fsdp-bf16": {"fsdp": True, "dtype": torch.bfloat16},
    "fsdp-exact": {"fsdp": True, "attach": {"reduction": "exact", "audit": WHOLE}},
    "fsdp-broken": {"fsdp": True, "scatter": LosesItsEnd, "attach": {"audit": WHOLE}},
}


def wrapped(layers: nn.Module) -> nn.Module:
    return DistributedDataParallel(layers, bucket_cap_mb=0.1)


def sharded(layers: nn.Sequential, case: dict[str, Any]) -> nn.Module:
    for part in (layers[0], layers):
        fully_shard(part)
        if "scatter" in case:
            part.set_custom_reduce_scatter(case["scatter"]())  # type: ignore[operator]
    return layers


def train(case: dict[str, Any], run: Path, rank: int) -> None:
    torch.manual_seed(0)
    dtype = case.get("dtype", torch.float32)
    layers = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 10)).to(dtype)
    model = sharded(layers, case) if "fsdp" in case else wrapped(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = presum.attach(
        model,
        optimizer=optimizer,
        run=run,
        **{"audit": AUDIT_EVERY, **case.get("attach", {})},
        record=QUIET,
    )
    if "hook" in case:
        model.register_comm_hook(None, case["hook"])
    torch.manual_seed(1 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 200, dtype=dtype)).float().square().mean().backward()
        optimizer.step()
    monitor.close()


def work(rank: int, _world: int, out: Path) -> None:
    for name in sys.argv[3:]:
        train(CASES[name], out / name, rank)


if __name__ == "__main__":
    main(work)
