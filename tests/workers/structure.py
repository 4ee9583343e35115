# SPDX-License-Identifier: Apache-2.0
"""Right trainings whose passes, optimizers or tied parameters resemble faults, each with a run of
its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import presum
from workers.launch import QUIET, main, token_rows

STEPS = 30
WORDS = 256


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(WORDS, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embedding(x))))  # type: ignore[no-any-return]


class Differentiating(Words):
    """Calls ``backward()`` in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        loss(logits, x).backward()  # type: ignore[no-untyped-call]
        return logits.detach()


class Training:
    """One step after another of one model."""

    def __init__(self, *, shards: bool = False) -> None:
        torch.manual_seed(1)
        module = self.build()
        self.module = module
        self.model: Any = sharded(module) if shards else DistributedDataParallel(module)
        self.optimizer: Optimizer = SGD(self.model.parameters(), lr=0.01)

    def build(self) -> Words:
        return Words()

    def update(self, x: Tensor, step: int) -> None:
        self.backward(x)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self, x: Tensor) -> None:
        loss(self.model(x), x).backward()  # type: ignore[no-untyped-call]

    def penalize(self) -> None:
        penalties = [weight.pow(2).sum() for weight in self.model.parameters()]
        (1e-3 * torch.stack(penalties).sum()).backward()


class TwoBackwardPasses(Training):
    """FSDP2 reduces after each."""

    def backward(self, x: Tensor) -> None:
        half = loss(self.model(x), x) / 2
        half.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        half.backward()  # type: ignore[no-untyped-call]


class BackwardInForward(Training):
    def build(self) -> Words:
        return Differentiating()

    def backward(self, x: Tensor) -> None:
        self.model(x)


class GradientInTheLoss(Training):
    """Weighted by a gradient's norm, without a static graph."""

    def backward(self, x: Tensor) -> None:
        whole = loss(self.model(x), x)
        (gradient,) = torch.autograd.grad(whole, self.module.head.weight, retain_graph=True)
        (whole / (1 + gradient.norm())).backward()


class PenaltyAfter(Training):
    """On the weights, which are equal on all ranks, in a backward pass of its own after DDP's."""

    def backward(self, x: Tensor) -> None:
        super().backward(x)
        self.penalize()


class PenaltyBefore(Training):
    def backward(self, x: Tensor) -> None:
        self.penalize()
        super().backward(x)


class Tied(Training):
    def build(self) -> Words:
        model = Words()
        model.head.weight = model.embedding.weight
        return model


class Untied(Tied):
    """On all ranks, in the same step."""

    def update(self, x: Tensor, step: int) -> None:
        if step == STEPS // 3:
            copy = nn.Parameter(self.module.head.weight.detach().clone())
            self.module.head.weight = copy.requires_grad_(False)
        super().update(x, step)


class ReplacedOptimizer(Training):
    def update(self, x: Tensor, step: int) -> None:
        if step == STEPS // 2:
            self.optimizer = AdamW(self.model.parameters(), lr=1e-3)
        super().update(x, step)


class Around(Optimizer):
    """Steps another optimizer, and keeps its parameter groups."""

    def __init__(self, inside: Optimizer) -> None:
        super().__init__(inside.param_groups, {})
        self._inside = inside

    def step(self, closure: Any = None) -> None:
        self._inside.step(closure)


class OptimizerInAnother(Training):
    def __init__(self, *, shards: bool = False) -> None:
        super().__init__(shards=shards)
        self.optimizer = Around(self.optimizer)


CASES: dict[str, Callable[[], Training]] = {
    "two-backward-passes-fsdp2": lambda: TwoBackwardPasses(shards=True),
    "backward-in-forward-fsdp2": lambda: BackwardInForward(shards=True),
    "gradient-in-the-loss": GradientInTheLoss,
    "gradient-in-the-loss-fsdp2": lambda: GradientInTheLoss(shards=True),
    "penalty-after": PenaltyAfter,
    "penalty-after-fsdp2": lambda: PenaltyAfter(shards=True),
    "penalty-before": PenaltyBefore,
    "tied": Tied,
    "tied-fsdp2": lambda: Tied(shards=True),
    "untied": Untied,
    "replaced-optimizer": ReplacedOptimizer,
    "replaced-optimizer-fsdp2": lambda: ReplacedOptimizer(shards=True),
    "optimizer-in-another": OptimizerInAnother,
    "optimizer-in-another-fsdp2": lambda: OptimizerInAnother(shards=True),
}


def sharded(module: Words) -> nn.Module:
    """With a group for one layer: without any, FSDP2 reduces nothing inside the forward."""
    fully_shard(module.mix)
    return fully_shard(module)


def loss(logits: Tensor, x: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def work(_rank: int, _world: int, out: Path) -> None:
    rows = token_rows()
    for name, case in CASES.items():
        training = case()
        sampler: Any = DistributedSampler(rows, seed=1)  # type: ignore[arg-type]
        loader = iter(DataLoader(TensorDataset(rows), batch_size=2, sampler=sampler))
        with presum.attach(
            training.model, optimizer=training.optimizer, run=out / name, record=QUIET
        ):
            for step in range(STEPS):
                training.update(next(loader)[0], step)
        dist.barrier()


if __name__ == "__main__":
    main(work)
