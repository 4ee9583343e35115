# SPDX-License-Identifier: Apache-2.0
"""Run logs that are written without a training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from observers import make_observer
from presum import _core

STEPS = 12


def observer(rank: int, ranks: int = 2) -> _core.Observer:
    return make_observer(
        [("layers.0.weight", 2, ""), ("layers.1.weight", 2, "")],
        rank=rank,
        ranks=ranks,
        sketch_size=64,
        host=f"node{rank}",
        facts=[("torch", "2.13.0")],
    )


def record(
    run: Path,
    steps: int = STEPS,
    *,
    ranks: int = 2,
    close: bool = True,
    opened: Callable[[], None] = lambda: None,
) -> None:
    """The loss of rank r is r + step / 10. Rank 1 has a gradient that is not finite at step 3, for
    a finding. ``opened`` is called once the run log is open."""
    aggregator = _core.Aggregator(str(run), ranks)
    opened()
    observers = [observer(rank, ranks) for rank in range(ranks)]

    def ingest(packet: bytes) -> None:
        aggregator.ingest(_core.stamp(packet, aggregator.run, aggregator.segment))

    for one in observers:
        ingest(one.hello())
    for step in range(steps):
        for rank, one in enumerate(observers):
            one.begin_step(step)
            for index in range(2):
                squares = float("nan") if (rank, step) == (1, 3) else 1.0 + rank
                bits = 100 * rank + step
                one.gradient_sums(index, 2, False, squares, 1.0, squares != squares, bits, 0)
            one.loss(rank + step / 10, 1, 1)
            one.samples([10 * step + rank])
            ingest(one.end_step(step, 1, 0, 1.0))
    for one in observers:
        ingest(one.note("bye"))
        ingest(one.goodbye(steps))
    if close:
        aggregator.close()
