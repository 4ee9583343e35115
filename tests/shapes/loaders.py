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
    WeightedRandomSampler,
)

from shapes.accumulation import loss_of
from shapes.training import WIDTH, Shape, Training, network

ROWS = 48


def rows(seed: int = 5) -> TensorDataset:
    draws = torch.Generator().manual_seed(seed)
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


def weighted(run: Training) -> Iterator[Any]:
    """Each worker draws with replacement, with a seed of its own."""
    draws = torch.Generator().manual_seed(100 + run.rank)
    sampler = WeightedRandomSampler(torch.arange(1.0, ROWS + 1).tolist(), ROWS, generator=draws)
    while True:
        yield from DataLoader(rows(), batch_size=4, sampler=sampler)


class Buckets:
    """Batches of rows of alike length, a share of them for each worker."""

    def __init__(self, run: Training) -> None:
        batches = torch.arange(ROWS).view(-1, 4).tolist()
        self.mine = batches[run.rank :: run.shape.world]

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.mine), generator=torch.Generator().manual_seed(3))
        return (self.mine[place] for place in order.tolist())

    def __len__(self) -> int:
        return len(self.mine)


def bucketed(run: Training) -> Iterator[Any]:
    while True:
        yield from DataLoader(rows(), batch_sampler=Buckets(run))


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, run: Training) -> None:
        self.rank, self.world = run.rank, run.shape.world

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(rows()), self.rank, None, self.world)


def streaming(run: Training) -> Iterator[Any]:
    while True:
        yield from DataLoader(Stream(run), batch_size=4)


def in_turn(run: Training) -> Iterator[Any]:
    """Two loaders, one after the other."""
    loaders = []
    for seed in (5, 6):
        sampler = DistributedSampler(rows(seed), run.shape.world, run.rank)
        loaders.append(DataLoader(rows(seed), batch_size=4, sampler=sampler))
    while True:
        for pair in zip(*loaders, strict=True):
            yield from pair


SHAPES = [
    Shape("repeated-data", fed(repeated), kept=5),
    Shape("weighted-sampler", fed(weighted), kept=5),
    Shape("bucketed-sampler", fed(bucketed), kept=5),
    Shape("streaming", fed(streaming), kept=5),
    Shape("loaders-in-turn", fed(in_turn), kept=5),
]
