# SPDX-License-Identifier: Apache-2.0
"""Other ways to set a training up: optimizers, and scalers."""

from __future__ import annotations

import torch
from torch import nn

from shapes.accumulation import loss_of
from shapes.training import Shape, Training, network, sgd


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
    """Gradients that are not finite at some steps: the scaler leaves these out."""
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


SHAPES = [
    Shape("two-optimizers", two_optimizers),
    Shape("without-optimizer", without_optimizer, findings=frozenset({"no-reduction"})),
    Shape("scaler-skips", scaler_skips),
]
