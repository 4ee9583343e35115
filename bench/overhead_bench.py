# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of default monitoring on a training step: a ratio measured side by side,
with its interval.

Separate processes cannot resolve 1 % on a noisy machine. Therefore two ranks train one model, and
from step to step presum's hooks are registered (on) or removed (off, and off' as a control), in an
order that is shuffled with a seed common to both ranks and mirrored in each block. The same blocks,
under DDP, measure what people write today: each parameter's norm by `.item()` and an all-gather
(norms), and a communication hook that squares each bucket (squares). Besides the time of a step, on
the slower rank, the benchmark measures the processor time of all threads of a rank, which other
programs on the machine disturb less. Estimator: the 20 %-trimmed mean over blocks of the log ratio
of step times, with a bootstrap interval over blocks. Blocks are added until the intervals of on and
of the control are within 0.5 % of their middle, or the minutes are over.

Pass: the upper bound is at most the way's limit, both intervals are narrow enough, and the
control's interval includes 0. Fail: the lower bound is above the limit. Otherwise inconclusive: the
machine cannot resolve it.

The trimming removes work that is done in one step of 25 or 50. The attributed time includes it: the
time inside presum's hooks over whole cycles of 50 recorded steps, by part; with `--every` above 1
only this time is reported. Exit status: 0 if everything passes, 1 if something fails, 2 if nothing
fails and something is inconclusive, 3 if the benchmark broke.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from attribution import CYCLE, Attributed, attribute
from trainings import (
    TOKENS,
    WAYS,
    Norms,
    SquaresTraining,
    Training,
    WatchedTraining,
    join_group,
    processor,
)

from experiments.launch import free_port

WORKERS = 2
HALF_WIDTH = 0.005
WARM_UP = 10
CYCLES = 5
LOOKED_AT = 10  # blocks between checks of the intervals
BACKGROUND_LIMIT = 0.005
BROKEN = 3


RATIO_LIMIT, ATTRIBUTED_LIMIT = 0.01, 0.005  # of a step
Took = tuple[float, float]  # seconds, and seconds of the processor
Times = dict[str, float]  # seconds per step, by mode


class Block(NamedTuple):
    """The times of a few steps in each mode."""

    wall: Times
    processor: Times


Estimate = tuple[float, float, float]


class Modes:
    """The modes of a step, by name, run one at a time."""

    def __init__(self, run: Path, arguments: argparse.Namespace) -> None:
        how = arguments.dtype, arguments.way, arguments.parameters
        self.watched = WatchedTraining(run, *how, arguments.every)
        self._steps: dict[str, Callable[[], Took]] = {
            "off": lambda: self._with(False, self.watched),
            "off'": lambda: self._with(False, self.watched),
            "on": lambda: self._with(True, self.watched),
        }
        if arguments.way == "ddp":
            norms = Norms(self.watched.model)
            squares = SquaresTraining(arguments.dtype, arguments.parameters)
            self._steps["norms"] = lambda: self._with_norms(norms, self.watched)
            self._steps["squares"] = lambda: self._with(False, squares)
        self.names = [*self._steps]

    def step(self, mode: str) -> Took:
        return self._steps[mode]()

    def _with(self, on: bool, training: Training) -> Took:
        self.watched.watch(on)
        return training.step(), training.processor

    def _with_norms(self, norms: Norms, training: Training) -> Took:
        norms.watch(True)
        try:
            return self._with(False, training)
        finally:
            norms.watch(False)


def block(modes: Modes, rng: random.Random) -> Block:
    half = rng.sample(modes.names, len(modes.names))
    times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes.names}
    for mode in half + half[::-1]:
        times[mode].append(modes.step(mode))
    own = torch.tensor([np.mean(times[mode], axis=0).tolist() for mode in modes.names])
    everyone = [torch.empty_like(own) for _ in range(WORKERS)]
    dist.all_gather(everyone, own)
    wall, _ = torch.stack(everyone).amax(0).T.tolist()  # a step ends when the slower rank is done
    _, processor = torch.stack(everyone).mean(0).T.tolist()
    return Block(
        dict(zip(modes.names, wall, strict=True)), dict(zip(modes.names, processor, strict=True))
    )


def measure(modes: Modes, blocks_max: int, seconds: float) -> list[Block]:
    """Measure blocks until their intervals are narrow enough. All ranks stop together, because they
    have the same times and use rank 0's clock."""
    rng = random.Random(1)
    for mode in modes.names * 2 + ["on"] * WARM_UP:
        modes.step(mode)
    found: list[Block] = []
    began = time.perf_counter()
    while len(found) < blocks_max:
        found.append(block(modes, rng))
        if len(found) % LOOKED_AT == 0 and len(found) >= 2 * LOOKED_AT:
            late = torch.tensor([time.perf_counter() - began > seconds])
            dist.broadcast(late, 0)
            estimates = ratios([one.wall for one in found])
            if bool(late) or all(
                half_width(estimates[name]) <= HALF_WIDTH for name in ("on", "off'")
            ):
                break
    return found


def worker(
    rank: int, port: int, arguments: argparse.Namespace, folder: str, answers: Queue[Any]
) -> None:
    join_group(rank, WORKERS, port)
    try:
        answers.put((rank, *measured(arguments, folder)))
    except Exception:
        answers.put(traceback.format_exc())
    dist.destroy_process_group()


def measured(arguments: argparse.Namespace, folder: str) -> tuple[list[Block], Attributed]:
    modes = Modes(Path(folder) / "run", arguments)
    gc.disable()
    every = arguments.every
    times = [] if every > 1 else measure(modes, arguments.blocks, 60 * arguments.minutes)
    modes.watched.watch(True)
    cycle = CYCLE * every
    attributed = attribute(modes.watched.step, arguments.cycles * cycle, cycle)
    gc.enable()
    modes.watched.monitor.close()
    return times, attributed


def ratios(blocks: list[Times]) -> dict[str, Estimate]:
    """The ratio of each mode to the mean of off and off', and of off' to off."""
    off = np.array([(times["off"] + times["off'"]) / 2 for times in blocks])
    found = {
        mode: interval(np.log(np.array([times[mode] for times in blocks]) / off))
        for mode in blocks[0]
        if mode not in ("off", "off'")
    }
    control = np.log(np.array([times["off'"] / times["off"] for times in blocks]))
    return found | {"off'": interval(control)}


def interval(log_ratios: np.ndarray) -> Estimate:
    """The 20 %-trimmed mean and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)

    def trimmed(sample: np.ndarray) -> np.ndarray:
        cut = sample.shape[-1] // 5
        ordered = np.sort(sample, axis=-1)
        return np.asarray(ordered[..., cut : sample.shape[-1] - cut].mean(axis=-1))

    picks = rng.integers(0, len(log_ratios), (4000, len(log_ratios)))
    low, high = np.quantile(trimmed(log_ratios[picks]), [0.025, 0.975])
    return float(trimmed(log_ratios)), float(low), float(high)


def half_width(estimate: Estimate) -> float:
    return (estimate[2] - estimate[1]) / 2


def verdict(on: Estimate, control: Estimate, limit: float) -> str:
    if on[1] > limit:
        return "fail"
    narrow = half_width(on) <= HALF_WIDTH and half_width(control) <= HALF_WIDTH
    resolved = narrow and control[1] <= 0 <= control[2]
    return "pass" if resolved and on[2] <= limit else "inconclusive"


def print_ratios(title: str, estimates: dict[str, Estimate]) -> None:
    print(f"  {title}")
    titles = {"on": "presum on / off", "off'": "off' / off (control)"}
    for name, (middle, low, high) in estimates.items():
        mode = titles.get(name, f"{name} / off")
        print(f"    {mode:22} {100 * middle:+.2f} %   [{100 * low:+.2f}, {100 * high:+.2f}] %")


def print_judged(blocks: list[Block], limit: float) -> str:
    estimates = ratios([one.wall for one in blocks])
    print_ratios("time per step", estimates)
    print_ratios("processor time per step", ratios([one.processor for one in blocks]))
    found = verdict(estimates["on"], estimates["off'"], limit)
    print(f"  on / off at most {100 * limit:.1f} %: {found}")
    return found


def print_attributed(rank: int, found: Attributed) -> None:
    print(
        f"  attributed, rank {rank}: {1e6 * found.hooks:.0f} us, "
        f"{100 * found.hooks / found.step:.2f} % of a step of {1e3 * found.step:.0f} ms (in most "
        f"steps {1e6 * found.usual:.0f} us), background thread "
        f"{100 * found.background / found.step:.2f} % of a core"
    )
    for name, took in sorted(found.parts.items(), key=lambda part: -part[1]):
        print(f"    of which {name:38} {1e6 * took:7.1f} us  {100 * took / found.step:.3f} %")


def report(
    answers: list[tuple[int, list[Block], Attributed]], arguments: argparse.Namespace
) -> int:
    """Print everything. Returns the exit status."""
    blocks = answers[0][1]
    founds = [attributed for _, _, attributed in sorted(answers, key=lambda answer: answer[0])]
    work = f"{TOKENS[0] * TOKENS[1]} tokens"
    if arguments.parameters:
        work = f"{arguments.parameters:,} parameters of 64 elements"
    walls = [one.wall["off"] for one in blocks] or [max(found.step for found in founds)]
    print(
        f"{1e3 * float(np.median(walls)):.0f} ms per step, {processor()}, {arguments.way}, "
        f"{arguments.dtype}, {work} per step, every={arguments.every}, {WORKERS} ranks, "
        f"{len(blocks)} blocks"
    )
    verdicts = [print_judged(blocks, RATIO_LIMIT)] if blocks else []
    for rank, found in enumerate(founds):
        print_attributed(rank, found)
    for title, worst, limit in (
        ("attributed", max(f.hooks / f.step for f in founds), ATTRIBUTED_LIMIT),
        ("background thread", max(f.background / f.step for f in founds), BACKGROUND_LIMIT),
    ):
        verdicts.append("pass" if worst <= limit else "fail")
        print(f"  {title} at most {100 * limit:.1f} %: {verdicts[-1]}")
    return 1 if "fail" in verdicts else 2 if "inconclusive" in verdicts else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="autocast dtype")
    parser.add_argument("--way", choices=WAYS, default="ddp", help="way of training")
    parser.add_argument(
        "--parameters", type=int, default=0, help="this many small ones with ddp, no language model"
    )
    parser.add_argument("--every", type=int, default=1, help="record every n-th step")
    parser.add_argument("--minutes", type=float, default=10, help="maximum time for blocks")
    parser.add_argument("--blocks", type=int, default=100_000, help="maximum number of blocks")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="attributed cycles of 50 steps")
    arguments = parser.parse_args()
    if arguments.parameters and arguments.way != "ddp":
        parser.error("--parameters requires --way ddp")
    return arguments


def main() -> int:
    arguments = parsed()
    port = free_port()
    context = multiprocessing.get_context("fork")
    answers: Queue[Any] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=worker, args=(rank, port, arguments, folder, answers))
            for rank in range(WORKERS)
        ]
        for process in workers:
            process.start()
        found = [answers.get(timeout=3600)]
        if not isinstance(found[0], str):  # the other ranks wait for a failed one
            found.append(answers.get(timeout=3600))
        failed = [answer for answer in found if isinstance(answer, str)]
        for process in workers:
            process.terminate() if failed else process.join()
    if failed:
        print(failed[0], file=sys.stderr)
        return BROKEN
    return report(found, arguments)


if __name__ == "__main__":
    sys.exit(main())
