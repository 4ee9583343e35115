# SPDX-License-Identifier: Apache-2.0
"""Steps whose gradients were never reduced, on purpose or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shapes.accumulation import loss_of
from shapes.training import Shape, Training, network

GOOD = 5  # steps before it goes wrong
NOT_REDUCED = frozenset({"no-reduction"})
Loop = Callable[[Training, DistributedDataParallel, torch.Tensor, int], None]


def going_wrong(one_pass: Loop, *, first_is_known: bool) -> Callable[[Training], None]:
    """From the sixth step on. ``first_is_known``: the first pass that is not reduced shows that it
    is wrong; else it could be the first of an accumulation."""

    def train(run: Training) -> None:
        model, optimizer = run.trained(network())
        for place, x in enumerate(run.batches()):
            known = first_is_known or place != GOOD
            run.expect(model, [loss_of(x)], known=known, reduced=place < GOOD)
            optimizer.zero_grad()
            one_pass(run, model, x, place)
            optimizer.step()

    return train


def leaking(_run: Training, model: DistributedDataParallel, x: torch.Tensor, place: int) -> None:
    with model.no_sync() if place >= GOOD else contextlib.nullcontext():
        loss_of(x)(model).backward()


def around(_run: Training, model: DistributedDataParallel, x: torch.Tensor, place: int) -> None:
    loss_of(x)(model.module if place >= GOOD else model).backward()


def local_sgd(run: Training) -> None:
    """Steps of each worker's own, and parameters averaged after every fourth."""
    model, optimizer = run.trained(network())
    for place, x in enumerate(run.batches()):
        run.expect(model, [loss_of(x)], known=place > 0, reduced=False)
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(x)(model).backward()
        optimizer.step()
        if place % 4 == 3:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= run.shape.world


def local_steps_between_reductions(run: Training) -> None:
    """One worker leaves out a local step now and then: the numbers of all agree all the same."""
    model, optimizer = run.trained(network())
    local = 0
    for place, x in enumerate(run.batches()):
        reduces = place % 4 == 3
        skips = run.rank == 0 and place % 8 == 1
        if not skips:
            run.expect(model, [loss_of(x)], known=reduces or local > 0, reduced=reduces)
        optimizer.zero_grad()
        with contextlib.nullcontext() if reduces else model.no_sync():
            loss_of(x)(model).backward()
        if not skips:
            optimizer.step()
        local += not reduces


SHAPES = [
    Shape("leaking-no-sync", going_wrong(leaking, first_is_known=False), findings=NOT_REDUCED),
    Shape("around-the-wrapper", going_wrong(around, first_is_known=True), findings=NOT_REDUCED),
    Shape("local-sgd", local_sgd),
    Shape(
        "local-steps-between-reductions",
        local_steps_between_reductions,
        findings=NOT_REDUCED,
        ragged=True,
    ),
]
