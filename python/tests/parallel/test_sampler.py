# SPDX-License-Identifier: Apache-2.0
"""presum.MicroBatchSampler."""

from __future__ import annotations

from typing import Any

import pytest

from presum.parallel.sampler import MicroBatchSampler

pytestmark = pytest.mark.usefixtures("one_worker")


def test_workers_share_the_same_micro_batches() -> None:
    def steps(workers: int) -> list[list[list[int]]]:
        """Each step's micro-batches of all workers."""
        samplers = [
            MicroBatchSampler(
                range(53), size=2, micro_batches=4, workers=workers, rank=rank, shuffle=True, seed=7
            )
            for rank in range(workers)
        ]
        for sampler in samplers:
            sampler.set_epoch(3)
        own = [list(sampler) for sampler in samplers]
        assert all(len(sampler) == len(found) for sampler, found in zip(samplers, own, strict=True))
        each = 4 // workers
        return [[b for o in own for b in o[i : i + each]] for i in range(0, len(own[0]), each)]

    assert steps(1) == steps(2) == steps(4) and len(steps(1)) == 6
    assert len({i for step in steps(1) for batch in step for i in batch}) == 48


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": "2"},
        {"size": 2.0},
        {"size": 3},
        {"micro_batches": 3},
        {"rank": 2},
        {"workers": 0},
    ],
)
def test_micro_batches_that_cannot_be_shared_are_refused(arguments: dict[str, Any]) -> None:
    whole = {"size": 1, "micro_batches": 4, "workers": 2, "rank": 0, **arguments}
    with pytest.raises(ValueError, match="MicroBatchSampler") as caught:
        MicroBatchSampler(range(8), **whole)
    assert "\n" not in str(caught.value)
