# SPDX-License-Identifier: Apache-2.0
"""Other ways to set a training up: optimisers, wrappers, groups, reductions by hand."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from shapes.accumulation import loss_of
from shapes.training import BACKEND, LONGER, WIDTH, Shape, Training, network, sgd


def two_optimizers(run: Training) -> None:
    """Matrices by one, the rest by another, as Muon is used."""
    model = run.wrap(network())
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizers = [torch.optim.SGD(matrices, lr=0.05), torch.optim.Adam(others, lr=1e-3)]
    run.watch(model, optimizers)
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(x)(model).backward()
        for optimizer in optimizers:
            optimizer.step()


def without_optimizer(run: Training) -> None:
    """presum is told of none; a program forgets the wrapper from the sixth step on."""
    model = run.wrap(network())
    optimizer = sgd(model)
    run.watch(model)
    for place, x in enumerate(run.batches()):
        if place + 1 < run.steps:  # the last one is not known to be used
            run.expect(model, [loss_of(x)], use="unknown", reduced=place < 5)
        optimizer.zero_grad()
        loss_of(x)(model if place < 5 else model.module).backward()
        optimizer.step()


def scaler_skips(run: Training) -> None:
    """Gradients that are not finite at some steps: the scaler makes none of these."""
    model = run.wrap(network())
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    run.watch(model, optimizer, scaler=scaler)
    for place, x in enumerate(run.batches()):
        factor = float("inf") if place % 7 == 3 else 1.0

        def loss(net: nn.Module, x: torch.Tensor = x, factor: float = factor) -> torch.Tensor:
            return net(x).square().mean() * factor

        run.expect(model, [loss], use="used" if factor == 1 else "unused")
        optimizer.zero_grad()
        scaler.scale(loss(model)).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled_around(run: Training) -> None:
    model = run.wrap(network())
    optimizer = sgd(model)
    compiled = torch.compile(model, backend=BACKEND)
    run.watch(compiled, optimizer)
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss_of(x)(compiled).backward()
        optimizer.step()


def by_hand_in_a_flat_buffer(run: Training) -> None:
    model = network()
    run.models.append(model)
    optimizer = sgd(model)
    monitor = run.watch(model, optimizer, mode="manual")
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss_of(x)(model).backward()
        named = [(name, p.grad) for name, p in model.named_parameters()]
        if monitor is not None:
            monitor.before_reduction(named)
        flat = torch.cat([gradient.flatten() for _, gradient in named])
        dist.all_reduce(flat)
        parts = (flat / run.shape.world).split([gradient.numel() for _, gradient in named])
        for (_, gradient), part in zip(named, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        if monitor is not None:
            monitor.after_reduction(named)
        optimizer.step()


def by_hand_without_zeroing(run: Training) -> None:
    """Two passes whose sum is handed over; the program subtracts what was there before."""
    model = network()
    run.models.append(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = run.watch(model, optimizer, mode="manual")
    before = [torch.zeros_like(p) for p in model.parameters()]
    for x in run.batches():
        run.expect(model, [loss_of(x), loss_of(-x)])
        for loss in (loss_of(x), loss_of(-x)):
            loss(model).backward()
        grads = [p.grad - old for p, old in zip(model.parameters(), before, strict=True)]
        named = dict(zip(dict(model.named_parameters()), grads, strict=True))
        if monitor is not None:
            monitor.before_reduction(named)
        for p, gradient in zip(model.parameters(), grads, strict=True):
            dist.all_reduce(gradient)
            p.grad.copy_(gradient / run.shape.world)
        before = [p.grad.clone() for p in model.parameters()]
        optimizer.step()


def rank_0_without_a_model(run: Training) -> None:
    """It evaluates, or serves; the others train among themselves."""
    group = dist.new_group(range(1, run.shape.world))
    if run.rank == 0:
        return
    model = run.wrap(network(), process_group=group)
    optimizer = sgd(model)
    run.watch(model, optimizer)
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss_of(x)(model).backward()
        optimizer.step()
        # Nothing else slows them down, and of thousands of steps a second some are not recorded.
        time.sleep(0.01 if LONGER > 1 else 0)


class Many(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(1) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(self.weights)) * x.mean()


def many_parameters(run: Training) -> None:
    model = run.wrap(Many(10_000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run.watch(model, optimizer)
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss_of(x)(model).backward()
        optimizer.step()


class Half(nn.Module):
    """Of a pair of workers each takes its half of what both are given."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = nn.Sequential(nn.Linear(WIDTH // 2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.first = rank % 2 * (WIDTH // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x[:, self.first : self.first + WIDTH // 2])


def sequence_parallel(run: Training) -> None:
    model = run.wrap(Half(run.rank))
    optimizer = sgd(model)
    run.watch(model, optimizer)
    draws = torch.Generator().manual_seed(1000 + run.rank // 2)
    for _ in range(run.steps):
        x = torch.randn(4, WIDTH, generator=draws)
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss_of(x)(model).backward()
        optimizer.step()


SHAPES = [
    Shape("two-optimizers", two_optimizers),
    Shape("without-optimizer", without_optimizer, findings=frozenset({"no-reduction"})),
    Shape("scaler-skips", scaler_skips, findings=frozenset({"nonfinite-gradient"})),
    Shape("compiled-around", compiled_around),
    Shape("by-hand-in-a-flat-buffer", by_hand_in_a_flat_buffer),
    Shape("by-hand-without-zeroing", by_hand_without_zeroing),
    Shape("rank-0-without-a-model", rank_0_without_a_model, waits=True),
    Shape("many-parameters", many_parameters, steps=3),
    Shape("sequence-parallel", sequence_parallel),
]
