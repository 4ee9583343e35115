# SPDX-License-Identifier: Apache-2.0
"""The same global batches on any number of workers."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class MicroBatchSampler(Sampler[list[int]]):
    """Batch sampler whose step always holds the same ``micro_batches`` micro-batches of ``size``
    samples, however many workers share them: worker r of W gets its M = ``micro_batches`` / W of
    them, one after the other, and calls ``backward()`` M times a step.

    With ``reduction=`` the gradient of a step then has the same bits for every W; what else must be
    fixed is in docs/integrations.md. What does not fill a step at an epoch's end is left out.

    >>> sampler = MicroBatchSampler(range(8), size=2, micro_batches=2, workers=1, rank=0)
    >>> list(sampler)
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    """

    def __init__(
        self,
        data: Sized,
        *,
        size: int,
        micro_batches: int,
        workers: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """``workers`` and ``rank`` are by default those of torch.distributed.

        Raises:
            ValueError: counts that are no integers or below 1, micro-batches that workers cannot
                share evenly, or less data than one step takes.
        """
        self.num_replicas = dist.get_world_size() if workers is None else workers
        self.rank = dist.get_rank() if rank is None else rank
        _check_integers(
            size=size,
            micro_batches=micro_batches,
            workers=self.num_replicas,
            rank=self.rank,
            seed=seed,
        )
        if size < 1:
            raise ValueError(f"presum.MicroBatchSampler: size must be at least 1, not {size}")
        if self.num_replicas < 1 or micro_batches < 1 or micro_batches % self.num_replicas:
            raise ValueError(
                f"presum.MicroBatchSampler: {micro_batches} micro-batches cannot be shared by "
                f"{self.num_replicas} workers: the first must be a multiple of the last"
            )
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"presum.MicroBatchSampler: rank {self.rank} of {self.num_replicas}")
        self.size = size
        self.micro_batches = micro_batches
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._samples = len(data)
        if self._steps() == 0:
            raise ValueError(
                f"presum.MicroBatchSampler: a step takes {micro_batches} micro-batches of {size} "
                f"samples, the data has {self._samples}"
            )

    def set_epoch(self, epoch: int) -> None:
        """Another order, where samples are shuffled."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Micro-batches of this worker in an epoch."""
        return self._steps() * (self.micro_batches // self.num_replicas)

    def _steps(self) -> int:
        return self._samples // (self.size * self.micro_batches)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.arange(self._samples)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self._samples, generator=generator)
        whole = order[: self._steps() * self.micro_batches * self.size]
        each = self.micro_batches // self.num_replicas
        own = whole.view(self._steps(), self.num_replicas, each, self.size)[:, self.rank]
        for micro_batch in own.reshape(-1, self.size):
            yield micro_batch.tolist()


def _check_integers(**values: object) -> None:
    for name, value in values.items():
        try:
            operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(
                f"presum.MicroBatchSampler: {name} must be an integer, not {value!r}"
            ) from None
