# SPDX-License-Identifier: Apache-2.0
"""How a model's gradients are to be summed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from presum.options import Reduction
from presum.reduce.methods import METHODS, Method, takes


class ReductionPlan(NamedTuple):
    """A method, and what divides the sum."""

    method: Method
    microbatch_mean: bool  # all leaves instead of the workers

    def __str__(self) -> str:
        return self.method + (", mean of micro-batches" if self.microbatch_mean else "")

    @property
    def code(self) -> int:
        """A number for it, by which workers see whether they agree."""
        return 2 * METHODS.index(self.method) + self.microbatch_mean

    def divisor(self, workers: int, leaves: int) -> int:
        """What divides the sum of that many leaves of that many workers."""
        return leaves if self.microbatch_mean else workers

    def check(self, dtypes: Collection[torch.dtype]) -> None:
        """Raises ValueError where gradients of these dtypes cannot be summed so."""
        for dtype in dtypes:
            name = str(dtype).removeprefix("torch.")
            if not takes(self.method, name):
                raise ValueError(f"presum.attach: reduction={self.method!r} cannot sum {name}")


def plan_of(reduction: Reduction | None, mode: str, gram_every: int | None) -> ReductionPlan | None:
    """Raises ValueError for arguments of presum.attach that do not go together."""
    if reduction is None:
        return None
    wanted = reduction.method
    method = next((known for known in METHODS if known == wanted), None)
    if method is None:
        names = ", ".join(METHODS)
        raise ValueError(f"presum.attach: reduction must be one of {names}, not {wanted!r}")
    if mode == "manual":
        raise ValueError(
            'presum.attach: with mode="manual" your own code reduces: use presum.reduce there'
        )
    if gram_every is not None:
        raise ValueError(
            'presum.attach: gram_every does not go with reduction; "exact" gives all cosines at '
            "every step"
        )
    return ReductionPlan(method, reduction.microbatch_mean)
