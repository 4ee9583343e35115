# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings that are interrupted and go on: ``first``, then ``second``; ``first`` may
end by ``kill -9``."""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import presum
from workers.launch import QUIET, main, steps_committed, wait_until

SAMPLES, BATCH, WORKERS = 320, 8, 2
PASS = SAMPLES // BATCH // WORKERS  # steps
SAVED = PASS + PASS // 2
MORE = 3  # steps after what was saved
STEPS = 2 * PASS
FEATURES = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
Change = Callable[[nn.Module, torch.optim.Optimizer], None]


def other_weights(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(1.01)


def other_state(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()


def other_generator(_model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    if dist.get_rank() == 1:
        torch.manual_seed(99)


# How the second training differs from what it should be.
CASES: dict[str, dict[str, Any]] = {
    "as-it-was": {},
    "killed": {},
    "other-weights": {"change": other_weights},
    "other-state": {"change": other_state},
    "other-generator": {"change": other_generator},
    "warm-start": {"loads_optimizer": False, "change": other_weights},
    "another-order": {"seed": 7},
    "pass-anew": {"skip": PASS},
}


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(seed: int, first: int) -> Iterator[torch.Tensor]:
    """From the step ``first`` on."""
    data = TensorDataset(FEATURES)
    sampler: Any = DistributedSampler(data, seed=seed)
    steps = len(sampler) // BATCH  # of a pass
    for epoch in range(first // steps, first // steps + 4):
        sampler.set_epoch(epoch)
        skipped = first % steps * BATCH if epoch == first // steps else 0
        generator = torch.Generator().manual_seed(epoch)  # the loader's own
        order: Any = list(sampler)[skipped:]
        yield from (x for (x,) in DataLoader(data, BATCH, sampler=order, generator=generator))


def train(
    run: Path,
    saved: dict[str, Any] | None,
    *,
    change: Change = lambda *_: None,
    seed: int = 0,
    skip: int = SAVED,
    loads_optimizer: bool = True,
) -> dict[str, Any]:
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + dist.get_rank())
    if saved is not None:
        model.module.load_state_dict(saved["model"])
        if loads_optimizer:
            optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        change(model.module, optimizer)
    monitor = presum.attach(model, optimizer=optimizer, run=run, record=QUIET)
    begin = 0 if saved is None else skip
    kept: dict[str, Any] = {}
    for step, x in enumerate(batches(seed, begin), begin):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if saved is None and step + 1 == SAVED:
            kept = copy.deepcopy(
                {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "generator": torch.get_rng_state(),
                }
            )
        if step + 1 == (SAVED + MORE if saved is None else begin + STEPS):
            break
    if saved is None and run.name == "killed":
        torch.save(kept, run.with_suffix(f".{dist.get_rank()}"))
        if dist.get_rank() == 0:
            wait_until(lambda: steps_committed(run) >= SAVED + MORE)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    monitor.close()
    dist.barrier()
    return kept


def work(rank: int, _world: int, out: Path) -> None:
    if sys.argv[3] == "killed":
        train(out / "killed", None)
    for name, how in CASES.items():
        file = out / f"killed.{rank}"
        saved = torch.load(file) if name == "killed" else train(out / name, None)
        train(out / name, saved, **how)


if __name__ == "__main__":
    main(work)
