# SPDX-License-Identifier: Apache-2.0
"""Several backward passes before the optimizer's step."""

from __future__ import annotations

import contextlib

import torch

from shapes.training import Loss, Shape, Training, network, sgd

PASSES = 4


def loss_of(x: torch.Tensor, divisor: int = 1) -> Loss:
    return lambda net: net(x).square().mean() / divisor


def plain(run: Training) -> None:
    model, optimizer = run.trained(network(dropout=0.1))
    torch.manual_seed(run.rank)
    for x in run.batches():
        run.step(model, optimizer, loss_of(x))


def under_no_sync(run: Training) -> None:
    """Losses divided by the number of passes; the last window is short."""
    model, optimizer = run.trained(network())
    batches = list(run.batches(count=PASSES * run.steps - 2))
    for first in range(0, len(batches), PASSES):
        window = [loss_of(x, PASSES) for x in batches[first : first + PASSES]]
        run.expect(model, window)
        for loss in window:
            last = loss is window[-1]
            with contextlib.nullcontext() if last else model.no_sync():
                loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def forward_alone_under_no_sync(run: Training) -> None:
    """DDP decides in the forward pass: a backward outside does not reduce."""
    model, optimizer = run.trained(network())
    for x in run.batches():
        run.expect(model, [loss_of(x), loss_of(x + 1)])
        optimizer.zero_grad()
        with model.no_sync():
            first = loss_of(x)(model)
        first.backward()
        loss_of(x + 1)(model).backward()
        optimizer.step()


def without_no_sync(run: Training) -> None:
    """Every pass reduces: what the next one adds to is the sum of all workers."""
    model, optimizer = run.trained(network())
    for place, x in enumerate(run.batches()):
        ends = place % PASSES == PASSES - 1
        run.expect(model, [loss_of(x)], use="used" if ends else "kept")
        loss_of(x)(model).backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()


def without_no_sync_in_views(run: Training) -> None:
    """Likewise, gradients in DDP's buckets, and zeroed in place."""
    model, optimizer = run.trained(network(), gradient_as_bucket_view=True)
    for place, x in enumerate(run.batches()):
        run.expect(model, [loss_of(x)], use="used" if place % 2 else "kept")
        loss_of(x)(model).backward()
        if place % 2 == 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def never_zeroed(run: Training) -> None:
    """A program that forgot zero_grad()."""
    model = run.wrap(network())
    optimizer = sgd(model, lr=0.001)
    run.watch(model, optimizer)
    for x in run.batches():
        run.expect(model, [loss_of(x)])
        loss_of(x)(model).backward()
        optimizer.step()


SHAPES = [
    Shape("plain", plain),
    Shape("accumulation", under_no_sync),
    Shape("accumulation-forward-outside", forward_alone_under_no_sync),
    Shape("accumulation-synchronized", without_no_sync),
    Shape("accumulation-synchronized-views", without_no_sync_in_views),
    Shape("never-zeroed", never_zeroed, findings=frozenset({"lost-gradients"})),
]
