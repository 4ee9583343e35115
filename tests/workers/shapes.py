# SPDX-License-Identifier: Apache-2.0
"""Trains every shape three times: plain, watched, beside its oracle. Writes SHAPE.RANK.json."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import resource
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from traces import TracedObserver

import presum.attaching
from shapes import SHAPES
from shapes.training import EVERY, LONGER, Shape, Training
from workers.launch import STUCK_S, main, write_json
from workers.matrix import digest


@contextlib.contextmanager
def sizes(every: int = EVERY) -> Iterator[list[tuple[int, int]]]:
    """Python's objects and the process' KiB after every so many optimizer steps of a long run."""
    taken: list[tuple[int, int]] = []
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            gc.collect()
            resident = Path("/proc/self/statm").read_text().split()[1]
            # torch keeps one object for each storage that was asked for, as long as it lives.
            objects = sum(type(one) is not torch.UntypedStorage for one in gc.get_objects())
            taken.append((objects, int(resident) * resource.getpagesize() // 1024))

    handle = register_optimizer_step_post_hook(count) if LONGER > 1 else None
    try:
        yield taken
    finally:
        if handle is not None:
            handle.remove()


def trained(training: Training) -> list[str]:
    """The digests of its models, its monitors closed."""
    torch.manual_seed(training.rank + 1)
    training.shape.train(training)
    for monitor in training.monitors:
        monitor.close()
    training.monitors.clear()
    return [digest(model) for model in training.models]


def told(shape: Shape, rank: int, out: Path) -> dict[str, object]:
    """What its three trainings came to."""
    plain, watched = Training(shape, rank), Training(shape, rank, watched=out / shape.name)
    oracle = Training(shape, rank, asks_oracle=True)
    TracedObserver.made.clear()
    digests = [trained(plain)]
    with sizes() as taken:
        digests.append(trained(watched))
    digests.append(trained(oracle))
    traces = [traced.lines for traced in TracedObserver.made]
    TracedObserver.made.clear()
    alive = [weakref.ref(model) for model in watched.models]
    watched.models.clear()
    gc.collect()
    return {
        "digests": digests,
        "expected": [dataclasses.asdict(step) for step in oracle.expected],
        "traces": traces,
        "sizes": taken,
        "alive": sum(model() is not None for model in alive),
    }


def work(rank: int, world: int, out: Path) -> None:
    presum.attaching.Observer = TracedObserver  # type: ignore[misc]
    for name, shape in SHAPES.items():
        if shape.world != world:
            continue
        faulthandler.dump_traceback_later(STUCK_S, exit=True)  # a time for each
        try:
            found = told(shape, rank, out)
        except Exception:
            found = {"error": traceback.format_exc()}
        write_json(out / f"{name}.{rank}.json", found)
        dist.barrier()


if __name__ == "__main__":
    main(work)
