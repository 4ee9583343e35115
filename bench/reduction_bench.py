# SPDX-License-Identifier: Apache-2.0
"""The end-to-end cost of a reproducible all-reduce, as ratios to Gloo's own, measured side by side.

The ranks are processes of this machine over Gloo's TCP. In each round every way reduces the same
buffer once, in an order shuffled with a common seed; the time of a way is that of its slowest rank.
Estimator: the median over rounds of the ratio to ``all_reduce`` of the same fp32 buffer, with a 95
% bootstrap interval.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future
from torch.multiprocessing.spawn import start_processes

from experiments.launch import free_port
from presum.parallel.reductions import ExactSum, Participants, Scratch, hand_over

OWN = "gloo fp32"


def reduced(exact: ExactSum, buffer: torch.Tensor) -> None:
    future: Future[torch.Tensor] = Future()
    exact.begin()
    hand_over(exact, buffer, future)
    future.wait()


def ways(buffer: torch.Tensor) -> dict[str, Callable[[], None]]:
    assert dist.group.WORLD is not None
    world = dist.get_world_size()
    participants = Participants(dist.group.WORLD, [1] * world, world)
    scratch = Scratch()

    def own() -> None:
        dist.all_reduce(buffer.mul_(1 / world))

    return {
        OWN: own,
        "exact": lambda: reduced(ExactSum(participants, [buffer], None, scratch), buffer),
    }


def seconds(way: Callable[[], None]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    way()
    took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def worker(rank: int, world: int, port: int, elements: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    generator = torch.Generator().manual_seed(rank)
    start = torch.randn(elements, generator=generator)
    buffer = start.clone()
    all_ways = ways(buffer)
    order, shuffle = list(all_ways), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds + 1):
        shuffle.shuffle(order)
        for name in order:
            buffer.copy_(start)
            took = seconds(all_ways[name])
            if number:
                times[name].append(took)
    if rank == 0:
        report(times, world, elements)
    dist.destroy_process_group()


def report(times: dict[str, list[float]], world: int, elements: int) -> None:
    own = np.array(times.pop(OWN))
    size = elements * 4 / 1e6
    print(f"{world} ranks, Gloo, {size:.0f} MB: all_reduce takes {np.median(own) * 1e3:.0f} ms")
    chance = np.random.default_rng(0)
    for name, taken in times.items():
        ratios = np.array(taken) / own
        draws = np.median(chance.choice(ratios, (2000, len(ratios))), axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        print(f"  {name:8} {np.median(ratios):5.2f} x   [{low:.2f}, {high:.2f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=25, help="size of the bucket")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    port = free_port()
    elements = int(args.megabytes * 1e6 / 4)
    each = (args.workers, port, elements, args.rounds)
    start_processes(worker, each, nprocs=args.workers)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
