# SPDX-License-Identifier: Apache-2.0
"""One worker: every run of a plan, one after the other, in one process group."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import torch
import torch.distributed as dist

from experiments.progress import Progress
from faults.data import Corpus
from faults.injectors import injector
from faults.injectors.continued import Continued
from faults.methods import TIMEOUT
from faults.plan import Case, Plan
from faults.sightings import SIGHTINGS, Sighting, mark_done
from faults.training import Training
from presum._core import Aggregator
from presum.transport import recorder


class WatchedAggregator(Aggregator):
    """Notes at which step each finding was there for the first time.

    A run log says where a finding's evidence begins; a delay needs the step at which it was enough.
    """

    sightings: list[Sighting]

    def __init__(self, run: str, world_size: int = 0) -> None:
        super().__init__(run, world_size)
        self.sightings = []
        self._folder = Path(run)
        self._steps = 0

    def ingest(self, packet: bytes) -> None:
        """As the original, and looks after each closed step."""
        super().ingest(packet)
        steps = self.counters["steps"]
        if steps > self._steps:
            self._steps = steps
            self._look()

    def _look(self) -> None:
        known = {sighting[:-1] for sighting in self.sightings}
        for finding in self.findings():
            what = finding["check"], finding["severity"], tuple(finding["ranks"])
            if what not in known:
                self.sightings.append(Sighting(*what, step=self._steps - 1))

    def close(self) -> None:
        """As the original, and writes what was noted."""
        super().close()
        text = json.dumps([sighting._asdict() for sighting in self.sightings])
        (self._folder / SIGHTINGS).write_text(text, encoding="utf-8")


def run_all(plan: Plan) -> None:
    """All cases of ``plan`` as the worker that the environment names (as torchrun sets it)."""
    torch.set_num_threads(1)
    setattr(recorder, "Aggregator", WatchedAggregator)  # noqa: B010
    dist.init_process_group("gloo", timeout=TIMEOUT)
    shown = dist.get_rank() == 0
    steps = sum(case.configuration.steps for case in plan.cases)
    progress = Progress(runs=len(plan.cases), steps=steps, shown=shown)
    for case in plan.cases:
        _run(plan, case, progress)
    progress.close()
    dist.barrier()
    dist.destroy_process_group()


def training_of(case: Case, corpus: Corpus, *, seed: int) -> Training:
    """Of a case, on this rank."""
    plain = Continued if case.configuration.continued else Training
    kind = injector(case.injector) if case.injector else plain
    return kind(case, corpus, seed=seed)


def _run(plan: Plan, case: Case, progress: Progress) -> None:
    """One case. The barrier keeps ranks from attaching to a run that others still close."""
    progress.start(case.folder)
    training = training_of(case, plan.corpus, seed=plan.seed + case.seed_offset)
    dist.barrier()
    training.run(plan.out / case.folder, tick=progress.step)
    if dist.get_rank() == 0:
        mark_done(plan.out / case.folder, plan.signature(case))
    del training
    gc.collect()
    progress.finish()
