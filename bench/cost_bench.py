# SPDX-License-Identifier: Apache-2.0
"""Measures presum's cost per parameter, by parts of its hook, and per step, by part.

It uses one process and a group of one rank. Per parameter: hooks of the extension are called for
the given number of parameters and do more from row to row. A row shows the difference to the
previous row: the median over rounds [quartiles]. "address and dtype" includes a pass over no
elements. Gradients have 64 elements and stay in the cache, as do code and sketch; after a backward
pass they do not, and cost two to three times as much (the second table). Per step: a language model
of 1.6 million parameters, and models with the given numbers of small parameters, attributed as in
overhead_bench.py. `--quick`: tiny sizes, to show that it works.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from attribution import CYCLE, Attributed, attribute
from trainings import WatchedTraining, join_group, processor

from experiments.launch import free_port
from presum._core import Observer, ParameterHook, PassFlags

COUNTS = (100, 1_000, 10_000)
ELEMENTS = 64
SKETCH = 4096
ROUNDS = 41


def observer(count: int, sketch_size: int) -> Observer:
    named = [(f"p{place}", ELEMENTS, "") for place in range(count)]
    found = Observer(
        model_index=0, replica=0, dp_group=0, rank=0, replicas=1, host="host",
        sketch_size=sketch_size, facts=[], parameters=named, buffers=[],
    )  # fmt: skip
    found.begin_step(0)
    return found


def parameters(count: int, elements: int) -> list[torch.nn.Parameter]:
    found = [torch.nn.Parameter(torch.zeros(elements)) for _ in range(count)]
    for parameter in found:
        parameter.grad = torch.randn(elements)
    return found


def calls(hooks: Sequence[Callable[[torch.Tensor], object]], of: Sequence[torch.Tensor]) -> float:
    """Seconds per parameter."""
    began = time.perf_counter()
    for hook, parameter in zip(hooks, of, strict=True):
        hook(parameter)
    return (time.perf_counter() - began) / len(hooks)


def per_parameter(count: int, rounds: int) -> list[tuple[str, np.ndarray]]:
    """Microseconds per part, one value per round."""
    listens, reads = PassFlags(), PassFlags()
    listens.in_backward = reads.in_backward = reads.reads_sums = True
    plain, sketched = observer(count, 0), observer(count, SKETCH)
    full, empty = parameters(count, ELEMENTS), parameters(count, 0)
    rows: list[tuple[str, list[ParameterHook], list[torch.nn.Parameter]]] = [
        ("loop of Python", [ParameterHook()] * count, full),
        ("hook entry", [ParameterHook(listens, place, plain) for place in range(count)], full),
        (
            "address and dtype",
            [ParameterHook(reads, place, plain) for place in range(count)],
            empty,
        ),
        ("kernel", [ParameterHook(reads, place, plain) for place in range(count)], full),
        ("sketch", [ParameterHook(reads, place, sketched) for place in range(count)], full),
    ]
    times = np.empty((rounds, len(rows)))
    for turn in range(rounds * len(rows)):
        for one in (plain, sketched):
            one.begin_step(1 + turn)  # no gradient comes twice in a step
        number, row = divmod(turn, len(rows))
        times[number, row] = 1e6 * calls(*rows[row][1:])
    parts = np.diff(times, axis=1)
    return [(name, parts[:, i]) for i, (name, _, _) in enumerate(rows[1:])]


def print_per_parameter(counts: Sequence[int], rounds: int) -> None:
    print(f"\nMicroseconds per parameter of {ELEMENTS} elements, {SKETCH} buckets\n")
    columns = [per_parameter(count, rounds) for count in counts]
    print(f"{'part':20}" + "".join(f"{f'{count:,} parameters':>24}" for count in counts))
    for row, (name, _) in enumerate(columns[0]):
        cells = [np.percentile(column[row][1], (50, 25, 75)) for column in columns]
        print(f"{name:20}" + "".join(f"{m:10.2f} [{a:.2f}, {b:.2f}]" for m, a, b in cells))


def step_cost(folder: Path, count: int, steps: int) -> Attributed:
    """The cost per step of a model with this many small parameters; 0: the language model."""
    training = WatchedTraining(folder / str(count), parameters=count)
    for _ in range(5):
        training.step()
    found = attribute(training.step, steps)
    training.monitor.close()
    return found


def print_per_step(counts: Sequence[int], steps: int) -> None:
    print(f"\nMicroseconds per step over {steps} steps; background: the recording thread\n")
    with tempfile.TemporaryDirectory() as folder:
        found = [step_cost(Path(folder), count, steps) for count in counts]
    titles = ["language model" if count == 0 else f"{count:,} parameters" for count in counts]
    print(f"{'part':38}" + "".join(f"{title:>20}" for title in titles))
    names = {name for one in found for name in one.parts}
    for name in sorted(names, key=lambda name: -found[0].parts.get(name, 0.0)):
        print(f"{name:38}" + "".join(f"{1e6 * one.parts.get(name, 0.0):20.1f}" for one in found))
    for title, values in (
        ("all hooks", [1e6 * one.hooks for one in found]),
        ("background", [1e6 * one.background for one in found]),
        ("the step itself", [1e6 * one.step for one in found]),
    ):
        print(f"{title:38}" + "".join(f"{value:20.1f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    quick = parser.parse_args().quick
    join_group(0, 1, free_port())
    print(processor())
    counts = (10, 20) if quick else COUNTS
    print_per_parameter(counts, 3 if quick else ROUNDS)
    print_per_step((0, *counts), 3 if quick else 2 * CYCLE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
