# SPDX-License-Identifier: Apache-2.0
"""The compared settings: three seed settings in two data modes."""

import random
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.utils.data.distributed import DistributedSampler

MODES = ("sharded", "replicated")
SETTINGS = ("S1-1", "S1-2", "S1-3")

# DistributedSampler shuffles epoch e with seed + e: if seeds differed by less than the number of
# epochs, one rank would get the order that another rank gets an epoch later.
SEED_STRIDE = 100_003


class S1Run(NamedTuple):
    """One training run of the experiment."""

    mode: str
    setting: str

    @property
    def name(self) -> str:
        """The name of the run's folder, such as ``sharded-S1-1``."""
        return f"{self.mode}-{self.setting}"


def rank_seed(*, setting: str, seed: int, rank: int) -> int:
    """The seed of a rank. S1-1: the same for all; S1-2: a different one for rank 0; S1-3: a
    separate one for each."""
    assert setting in SETTINGS
    if setting == "S1-1":
        return seed
    if setting == "S1-2":
        return seed + SEED_STRIDE if rank == 0 else seed
    return seed + SEED_STRIDE * rank


def make_sampler(
    dataset: Sized, *, mode: str, seed: int, rank: int, workers: int
) -> "DistributedSampler[Any]":
    """The order in which one rank reads the data.

    ``sharded``: this rank's share of the permutation given by ``seed`` (padded at the end of an
    epoch, so that shares are equal). ``replicated``: the whole permutation.
    """
    from torch.utils.data.distributed import DistributedSampler

    assert mode in MODES
    shares, share = (workers, rank) if mode == "sharded" else (1, 0)
    return DistributedSampler(
        dataset,  # type: ignore[arg-type]
        num_replicas=shares,
        rank=share,
        shuffle=True,
        seed=seed,
    )


def seed_everything(seed: int) -> None:
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
