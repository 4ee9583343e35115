# SPDX-License-Identifier: Apache-2.0
"""Trains every shape three times: plain, watched, beside its oracle. Writes SHAPE.RANK.json."""

from __future__ import annotations

import dataclasses
import gc
import traceback
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from traces import TracedObserver

import presum.attaching
from shapes import SHAPES
from shapes.training import Shape, Training
from workers.launch import main, write_json
from workers.matrix import digest


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
    digests = [trained(one) for one in (plain, watched, oracle)]
    traces = [traced.lines for traced in TracedObserver.made]
    TracedObserver.made.clear()
    alive = [weakref.ref(model) for model in watched.models]
    watched.models.clear()
    gc.collect()
    return {
        "digests": digests,
        "expected": [dataclasses.asdict(step) for step in oracle.expected],
        "traces": traces,
        "alive": sum(model() is not None for model in alive),
    }


def work(rank: int, _world: int, out: Path) -> None:
    presum.attaching.Observer = TracedObserver  # type: ignore[misc]
    for name, shape in SHAPES.items():
        try:
            found = told(shape, rank, out)
        except Exception:
            found = {"error": traceback.format_exc()}
        write_json(out / f"{name}.{rank}.json", found)
        dist.barrier()


if __name__ == "__main__":
    main(work)
