# SPDX-License-Identifier: Apache-2.0
"""Run folders for the tests of the report, made by simulated workers in milliseconds."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from observers import make_observer
from presum import _core

WIDTH = 256  # elements of a layer
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u2028"

Gradient = list[npt.NDArray[np.float32]]


def _never(rank: int, step: int) -> bool:
    return False


@dataclass(frozen=True)
class Scene:
    """What the workers of a run do."""

    workers: int = 8
    steps: int = 40
    layers: int = 4
    sketch: int = 1024
    shared: float = 0.6  # how much of a gradient is the same on all workers
    replicated: Container[int] = ()  # ranks that read the same data
    missing: Callable[[int, int], bool] = _never
    nonfinite: Callable[[int, int], bool] = _never
    deviates: Callable[[int, int], bool] = _never
    losses: bool = True
    scale: float = 1  # of losses and gradients
    mixed: bool = False  # the last worker has another torch
    text: str = "model"  # part of every string that the run holds


def make(folder: Path, scene: Scene, after_step: Callable[[], object] = lambda: None) -> Path:
    """Record a run as the scene says; the same scene always makes the same one."""
    run = _core.Aggregator(str(folder))
    workers = [_worker(scene, rank) for rank in range(scene.workers)]
    rng = np.random.default_rng(0)
    for worker in workers:
        run.ingest(_core.stamp(worker.hello(), run.run, run.segment))
    for step in range(scene.steps):
        loss = 6 * np.exp(-step / scene.steps) + 0.1 * rng.normal()
        common = _draw(rng, scene)
        same = (0.4 * rng.normal(), _draw(rng, scene))
        for rank, worker in enumerate(workers):
            own = (0.4 * rng.normal(), _draw(rng, scene))
            offset, noise = same if rank in scene.replicated else own
            if scene.missing(rank, step):
                continue
            packet = _step(worker, scene, rank, step, loss + offset, _blend(scene, common, noise))
            run.ingest(_core.stamp(packet, run.run, run.segment))
        run.tick()
        after_step()
    note = workers[0].note(f"a note about {scene.text}")
    run.ingest(_core.stamp(note, run.run, run.segment))
    for worker in workers:
        run.ingest(_core.stamp(worker.goodbye(0), run.run, run.segment))
    run.close()
    _set_times(folder / "presum.db")
    return folder


def repeat(folder: Path, times: int) -> Path:
    """Let the steps of a run follow each other this many times."""
    numbers = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k + 1 < ?) "
    with contextlib.closing(sqlite3.connect(folder / "presum.db")) as db:
        (steps,) = db.execute("SELECT count(*) FROM step").fetchone()
        for table, shifted in (
            ("step", ("id", "step")),
            ("worker_step", ("step_id",)),
            ("group_step", ("step_id",)),
        ):
            db.execute(f"CREATE TEMP TABLE old AS SELECT * FROM {table}")
            names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
            values = [f'"{n}" + k * {steps}' if n in shifted else f'"{n}"' for n in names]
            db.execute(
                f"{numbers} INSERT INTO {table} SELECT {', '.join(values)} FROM n, old", (times,)
            )
            db.execute("DROP TABLE old")
        db.commit()
    return folder


def _set_times(file: Path) -> None:
    """Steps that a program numbers itself have none. These workers wait for nobody."""
    columns = "time_data=0.001, time_forward=0.01+0.0002*rank, time_backward=0.02, "
    columns += "time_optimizer=0.001, time_rest=0.0005, time_reduction=0, time_processor=0.03"
    with contextlib.closing(sqlite3.connect(file)) as db:
        later = "step_id IN (SELECT id FROM step WHERE step > 0)"
        db.execute(f"UPDATE worker_step SET {columns} WHERE {later}")
        db.commit()


def _worker(scene: Scene, rank: int) -> _core.Observer:
    odd = scene.mixed and rank == scene.workers - 1
    return make_observer(
        [
            (f"{scene.text}.layers.{i}.weight", WIDTH, f"{scene.text}.layers.{i}")
            for i in range(scene.layers)
        ],
        rank=rank,
        ranks=scene.workers,
        sketch_size=scene.sketch,
        host=f"{scene.text}-node{rank // 8}",
        facts=[
            ("torch", "2.12.1" if odd else "2.13.0"),
            ("pid", f"{4000 + rank}"),
            (f"name of {scene.text}", scene.text),
        ],
    )


def _draw(rng: np.random.Generator, scene: Scene) -> Gradient:
    return [rng.normal(size=WIDTH).astype(np.float32) for _ in range(scene.layers)]


def _blend(scene: Scene, common: Gradient, noise: Gradient) -> Gradient:
    share = np.float32(scene.shared)
    return [share * c + (1 - share) * n for c, n in zip(common, noise, strict=True)]


def _step(
    worker: _core.Observer, scene: Scene, rank: int, step: int, loss: float, gradient: Gradient
) -> bytes:
    if scene.deviates(rank, step):
        loss, gradient = loss + 1.5, [2 * g for g in gradient]
    loss, gradient = scene.scale * loss, [np.float32(scene.scale) * g for g in gradient]
    worker.begin_step(step)
    for layer, values in enumerate(gradient):
        if layer == 1 and scene.nonfinite(rank, step):
            values = np.append(values[:-1], np.float32("nan"))
        worker.gradient(layer, values.ctypes.data, len(values), _core.Dtype.FLOAT32)
    if scene.losses:
        worker.loss(float("nan") if scene.nonfinite(rank, step) else loss, 1.0, 64)
    return worker.end_step(step, 1, 0, 1.0)


def s1(folder: Path) -> list[Path]:
    """The six runs of S1: two data modes, three settings."""
    shared_ranks: dict[int, Container[int]] = {1: range(8), 2: range(1, 8), 3: ()}
    return [
        make(
            folder / f"{mode}-S1-{setting}",
            Scene(shared=0.1, replicated=ranks if mode == "replicated" else ()),
        )
        for mode in ("replicated", "sharded")
        for setting, ranks in shared_ranks.items()
    ]
