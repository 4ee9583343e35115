# SPDX-License-Identifier: Apache-2.0
"""The same global batches for any number of ranks."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class MicroBatchSampler(Sampler[list[int]]):
    """A batch sampler whose steps contain the same micro-batches for any number of ranks.

    Each step has ``micro_batches`` micro-batches of ``size`` samples. Rank r of W ranks gets M =
    ``micro_batches`` / W consecutive ones, and calls ``backward()`` M times per step. With
    ``reduction=`` the gradient of a step then has the same bits for every W; docs/integrations.md
    lists what else must be fixed. Samples at the end of an epoch that do not fill a step are
    dropped.

    Pass it to ``DataLoader(batch_sampler=...)``. It yields lists of ``size`` indices. Call
    :meth:`set_epoch` before each epoch if ``shuffle`` is set.

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
        """Create the sampler.

        Args:
            data: the dataset; only its length is used.
            size: samples per micro-batch.
            micro_batches: micro-batches per step over all ranks, a multiple of ``workers``.
            workers: the number of ranks. Default: the world size of torch.distributed.
            rank: this rank. Default: the rank in torch.distributed.
            shuffle: draw a new order for each epoch, the same on all ranks.
            seed: the seed of the order, the same on all ranks.

        Raises:
            ValueError: a count is not an integer or is below 1, ``micro_batches`` is not a multiple
                of ``workers``, ``rank`` is out of range, or ``data`` has fewer samples than one
                step.
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
                f"presum.MicroBatchSampler: micro_batches ({micro_batches}) must be a multiple of "
                f"num_replicas ({self.num_replicas})"
            )
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"presum.MicroBatchSampler: rank {self.rank} is out of range for "
                f"{self.num_replicas} ranks"
            )
        self.size = size
        self.micro_batches = micro_batches
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._samples = len(data)
        if self._steps() == 0:
            raise ValueError(
                f"presum.MicroBatchSampler: a step needs {micro_batches} micro-batches of {size} "
                f"samples, but the data has {self._samples} samples"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which selects the order if ``shuffle`` is set."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of micro-batches of this rank in an epoch."""
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
