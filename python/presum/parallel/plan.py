# SPDX-License-Identifier: Apache-2.0
"""How a model's gradients are to be summed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

METHODS = ("exact", "binned", "fixed32", "fixed64")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Plan(NamedTuple):
    """A method, and what divides the sum."""

    method: str
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
        known = (*DTYPES, torch.float64) if self.method == "exact" else DTYPES
        for dtype in dtypes:
            if dtype not in known:
                name = str(dtype).removeprefix("torch.")
                raise ValueError(f"presum.attach: reduction={self.method!r} cannot sum {name}")


def plan_of(
    reduction: str | None, mode: str, gram_every: int | None, *, microbatch_mean: bool
) -> Plan | None:
    """Raises ValueError for arguments of presum.attach that do not go together."""
    if reduction is None:
        if microbatch_mean:
            raise ValueError("presum.attach: microbatch_mean needs reduction")
        return None
    if reduction not in METHODS:
        names = ", ".join(METHODS)
        raise ValueError(f"presum.attach: reduction must be one of {names}, not {reduction!r}")
    if mode == "manual":
        raise ValueError(
            'presum.attach: with mode="manual" your own code reduces: use presum.reduce there'
        )
    if gram_every is not None:
        raise ValueError(
            'presum.attach: gram_every does not go with reduction; "exact" gives all cosines at '
            "every step"
        )
    return Plan(reduction, microbatch_mean)
