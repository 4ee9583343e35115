# SPDX-License-Identifier: Apache-2.0
"""Writes a run of two ranks with a finding: recorded.py RUN. Needs only presum."""

import sys

from presum._core import Aggregator, Observer, stamp

STEPS = 40


def main() -> None:
    aggregator = Aggregator(sys.argv[1], 2)
    ranks = [
        Observer(
            model_index=0, replica=rank, dp_group=0, rank=rank, replicas=2, host="host",
            sketch_size=64, facts=[], parameters=[("weight", 2, "")], buffers=[],
        )
        for rank in range(2)
    ]  # fmt: skip

    def ingest(packet: bytes) -> None:
        aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))

    for one in ranks:
        ingest(one.hello())
    for step in range(STEPS):
        for rank, one in enumerate(ranks):
            one.begin_step(step)
            broken = (rank, step) == (1, 7)
            squares = float("nan") if broken else 1.0 + rank
            one.gradient_sums(0, 2, False, squares, 1.0, int(broken), step + 7, 0)
            one.loss(1.0 + rank, 1, 1)
            ingest(one.end_step(step, 1, 0, 1.0))
    for one in ranks:
        ingest(one.goodbye(STEPS))
    aggregator.close()


main()
