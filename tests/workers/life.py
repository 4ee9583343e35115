# SPDX-License-Identifier: Apache-2.0
"""Who lives how long: models, optimizers and monitors that a program lets go of, one case a run.

Every rank writes life.RANK.json: what was still alive, case by case.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.steps.step_recorder import StepRecorder
from presum.transport.session import open_sessions
from workers.launch import QUIET, main, wait_until, write_json

STEPS = 4
Wrap = Callable[[nn.Module], nn.Module]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()


def sharded(module: nn.Module) -> nn.Module:
    return fully_shard(module)


def alive(
    wrap: Wrap, options: dict[str, Any] | None, run: Path, *, collect: bool = False
) -> list[str]:
    """Of a training that the program lets go of, without a word to presum, what was not freed by
    reference count; or, with ``collect``, by the garbage collector."""
    inner = network()
    model = wrap(inner)
    optimizer = torch.optim.Adam(model.parameters())
    kept: dict[str, Any] = {"optimizer": optimizer, "weight": next(model.parameters())}
    kept |= {"model": model, "inner": inner, "buffer": inner[1].running_mean}
    if options is not None:
        kept["monitor"] = presum.attach(
            model, optimizer=optimizer, run=run, **options, record=QUIET
        )
    train(model, optimizer)
    references = {name: weakref.ref(thing) for name, thing in kept.items()}
    kept.clear()
    del inner, model, optimizer
    if collect:
        gc.collect()
    return [name for name, reference in references.items() if reference() is not None]


def release_group(out: Path) -> dict[str, list[str]]:
    cases: dict[str, tuple[Wrap, dict[str, Any]]] = {
        "ddp": (DistributedDataParallel, {}),
        "views": (lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True), {}),
        "hook": (DistributedDataParallel, {"audit": 1}),
        "exact": (DistributedDataParallel, {"reduction": "exact"}),
        "fsdp2": (sharded, {}),
        "manual": (lambda m: m, {"mode": "manual"}),
    }
    found = {}
    alive(DistributedDataParallel, None, out)  # what torch keeps of a first one
    gc.collect()
    gc.disable()
    for name, (wrap, options) in cases.items():
        plain = alive(wrap, None, out)
        watched = alive(wrap, options, out / "let-go")
        found[name] = [what for what in watched if what not in plain]
    # Of FSDP2 torch leaves cycles, with presum and without.
    found["fsdp2-cycles"] = alive(sharded, {}, out / "let-go", collect=True)
    gc.enable()
    return found


def wrap_again(out: Path) -> list[int]:
    """One module in six wrappers, one after the other; how many hooks its parameters bear then."""
    inner, counts = network(), []
    models = []
    for _ in range(6):
        model = DistributedDataParallel(inner)
        models.append(model)  # earlier wrappers live on
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        presum.attach(model, optimizer=optimizer, run=out / "wrapped-again", record=QUIET)
        train(model, optimizer)
        hooks = next(inner.parameters())._post_accumulate_grad_hooks
        counts.append(len(hooks or {}))
    return counts


def attach_and_close(out: Path) -> dict[str, list[int]]:
    """Descriptors, threads and recorders, at the beginning and after many monitors."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts: dict[str, list[int]] = {"descriptors": [], "threads": [], "recorders": []}
    gc.disable()
    for index in range(25):
        with presum.attach(model, optimizer=optimizer, run=out / "closed", record=QUIET):
            train(model, optimizer, steps=1)
        if index >= 4:
            counts["descriptors"].append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            counts["threads"].append(len(os.listdir("/proc/self/task")))  # noqa: PTH208
        if index in (4, 24):
            gc.collect()
            found = [one for one in gc.get_objects() if isinstance(one, StepRecorder)]
            counts["recorders"].append(len(found))
    gc.enable()
    return counts


def dropped_monitor(out: Path) -> None:
    """The program keeps the model only."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    presum.attach(model, optimizer=optimizer, run=out / "dropped-monitor", record=QUIET)
    gc.collect()
    train(model, optimizer, steps=10)


def last_step_is_open(out: Path) -> None:
    """Without optimizer= the last step is open when the model goes."""
    model = DistributedDataParallel(network())
    presum.attach(model, run=out / "open", record=QUIET)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    del model


def in_a_cycle(out: Path) -> None:
    """The garbage collector finds the model, on whatever thread it runs."""

    class Holder:
        pass

    holder = Holder()
    holder.model = DistributedDataParallel(network())  # type: ignore[attr-defined]
    holder.itself = holder  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(holder.model.parameters(), lr=0.1)  # type: ignore[attr-defined]
    presum.attach(holder.model, optimizer=optimizer, run=out / "cycle", record=QUIET)  # type: ignore[attr-defined]
    train(holder.model, optimizer)  # type: ignore[attr-defined]
    del holder, optimizer
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


def work(rank: int, world: int, out: Path) -> None:
    found = {
        "alive": release_group(out),
        "hooks": wrap_again(out),
        "closed": attach_and_close(out),
    }
    dropped_monitor(out)
    last_step_is_open(out)
    in_a_cycle(out)
    wait_until(lambda: not any(session.recordings for session in open_sessions()))
    write_json(out / f"life.{rank}.json", found)
    dist.barrier()


if __name__ == "__main__":
    main(work)
