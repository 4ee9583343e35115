# SPDX-License-Identifier: Apache-2.0
"""What presum is for, in two short trainings: ``make demo`` runs this before the experiment.

One training is healthy. In the other one, rank 5's gradient is 4 times too large from step 60 on,
as where a rank does not divide by its loss scale. The averaged loss does not show it.
"""

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import presum
from experiments.command import exit_code_of, make_parser, run_program
from experiments.folders import replace_folders
from experiments.launch import run_workers
from experiments.progress import Progress
from experiments.s1.command import choose_dtype, options_parser
from experiments.s1.plan import Plan
from experiments.s1.prepare import make_plan
from experiments.s1.worker import batches, join_group, train

RUNS = ("healthy", "rank-5-breaks")
RANKS = 8
STEPS = 90
BROKEN_RANK = 5
BROKEN_FROM = 60
BROKEN_FACTOR = 4

_DESCRIPTION = """\
Trains a small model on 8 ranks twice. The first run is healthy. In the second one, rank 5's
gradient is 4 times too large from step 60 on. Prints the averaged loss and presum's verdict."""


class Counter:
    """Counts optimizer steps, and shows them."""

    def __init__(self, progress: Progress) -> None:
        self.done = 0
        self._progress = progress

    def step(self) -> None:
        self.done += 1
        self._progress.step()


class Verdict(NamedTuple):
    """What is known of a run at its end."""

    folder: Path
    averaged_loss: float
    """Mean over the ranks and the steps from ``BROKEN_FROM`` on; NaN if there is no such step."""
    worst: presum.Finding | None
    """The gravest finding above info."""


def main(argv: list[str]) -> int:
    """Trains both runs. Returns 0, 1 if a rank failed, or 130 if interrupted."""
    parser = make_parser("python -m experiments.demo", _DESCRIPTION, "")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="(demo)")
    out: Path = parser.parse_args(argv).out
    return exit_code_of(lambda: run_both(out, steps=STEPS))


def run_both(out: Path, *, steps: int) -> int:
    """Trains both runs for ``steps`` steps into ``out`` and prints what presum says of them."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments = ["--out", str(out), "--steps", str(steps), "--batch", "1"]
    options = options_parser().parse_args(arguments)
    choose_dtype(options, shown=True)
    plan, _ = make_plan(options, runs=(), workers=RANKS)
    replace_folders(out / name for name in RUNS)
    print(f"Two trainings of {steps} steps on {RANKS} ranks:", file=sys.stderr, flush=True)
    run_workers(train_both, plan, workers=RANKS)
    print("\n".join(["", *(text_of(verdict_on(out / name)) for name in RUNS)]), flush=True)
    return 0


def train_both(plan: Plan) -> None:
    """Both runs as the rank that the environment names."""
    import torch.distributed as dist

    place = join_group()
    progress = Progress(runs=len(RUNS), steps=len(RUNS) * plan.steps, shown=place.rank == 0)
    for name in RUNS:
        progress.start(name)
        counter = Counter(progress)
        breaks = name != RUNS[0] and place.rank == BROKEN_RANK
        train(
            plan,
            batches(plan, "sharded", place=place, seed=plan.seed),
            folder=plan.out / name,
            seed=plan.seed,
            place=place,
            step=counter.step,
            prepare=partial(break_gradient, counter=counter) if breaks else lambda model: None,
        )
        progress.finish()
    progress.close()
    dist.barrier()
    dist.destroy_process_group()


def break_gradient(model: Any, *, counter: Counter) -> None:
    """Scales this rank's gradient from ``BROKEN_FROM`` on."""

    def scaled(grad: Any) -> Any:
        return grad * BROKEN_FACTOR if counter.done >= BROKEN_FROM else grad

    for parameter in model.parameters():
        parameter.register_hook(scaled)


def verdict_on(folder: Path) -> Verdict:
    run = presum.load(folder)
    losses = run.steps["loss_mean"][run.steps["step"] >= BROKEN_FROM]
    grave = [finding for finding in run.findings if finding.severity != "info"]
    return Verdict(
        folder=folder,
        averaged_loss=float(losses.mean()) if len(losses) else math.nan,
        worst=grave[0] if grave else None,
    )


def text_of(verdict: Verdict) -> str:
    """Five lines at most."""
    loss = f"averaged loss from step {BROKEN_FROM} on: {verdict.averaged_loss:.3f}"
    if verdict.worst is None:
        return f"{verdict.folder.name}: no warning\n  {loss}\n"
    return (
        f"{verdict.folder.name}: {verdict.worst.severity} [{verdict.worst.check}]\n"
        f"  {loss}\n"
        f"  {verdict.worst.sentence}\n"
        f"  presum findings {verdict.folder}\n"
    )


if __name__ == "__main__":
    run_program(main)
