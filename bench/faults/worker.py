# SPDX-License-Identifier: Apache-2.0
"""One rank: every run of a plan, one after another, in one process group."""

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
    """Notes the step at which each finding first appears.

    A run log stores where a finding's evidence begins; the delay needs the step at which the
    evidence was sufficient.
    """

    sightings: list[Sighting]

    def __init__(self, run: str, world_size: int = 0) -> None:
        super().__init__(run, world_size)
        self.sightings = []
        self._folder = Path(run)
        self._steps = 0

    def ingest(self, packet: bytes) -> None:
        """Ingest a packet, and check for new findings after each closed step."""
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
        """Close the run, and write the sightings."""
        super().close()
        text = json.dumps([sighting._asdict() for sighting in self.sightings])
        (self._folder / SIGHTINGS).write_text(text, encoding="utf-8")


def run_all(plan: Plan) -> None:
    """Run all cases of ``plan`` as the rank in the environment (set as by torchrun)."""
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
    """The training of a case on this rank."""
    plain = Continued if case.configuration.continued else Training
    kind = injector(case.injector) if case.injector else plain
    return kind(case, corpus, seed=seed)


def _run(plan: Plan, case: Case, progress: Progress) -> None:
    """Run one case. The barrier prevents ranks from attaching to a run that others are still
    closing."""
    progress.start(case.folder)
    training = training_of(case, plan.corpus, seed=plan.seed + case.seed_offset)
    dist.barrier()
    training.run(plan.out / case.folder, tick=progress.step)
    if dist.get_rank() == 0:
        mark_done(plan.out / case.folder, plan.signature(case))
    del training
    gc.collect()
    progress.finish()
