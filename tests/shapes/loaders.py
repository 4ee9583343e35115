# SPDX-License-Identifier: Apache-2.0
"""Ways to come by batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from shapes.accumulation import loss_of
from shapes.training import WIDTH, Shape, Training, network

ROWS = 48


def rows() -> TensorDataset:
    draws = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(ROWS, WIDTH, generator=draws))


def fed(batches: Callable[[Training], Iterator[Any]]) -> Callable[[Training], None]:
    """A training on what these give."""

    def train(run: Training) -> None:
        model, optimizer = run.trained(network())
        for (x,) in itertools.islice(batches(run), run.steps):
            run.step(model, optimizer, loss_of(x))

    return train


def repeated(run: Training) -> Iterator[Any]:
    """One pass over the data, kept and gone through again and again."""
    sampler = DistributedSampler(rows(), run.shape.world, run.rank)
    return itertools.cycle(list(DataLoader(rows(), batch_size=4, sampler=sampler)))


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, run: Training) -> None:
        self.rank, self.world = run.rank, run.shape.world

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(rows()), self.rank, None, self.world)


def streaming(run: Training) -> Iterator[Any]:
    while True:
        yield from DataLoader(Stream(run), batch_size=4)


SHAPES = [
    Shape("repeated-data", fed(repeated), kept=5),
    Shape("streaming", fed(streaming), kept=5),
]
