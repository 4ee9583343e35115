# SPDX-License-Identifier: Apache-2.0
"""``presum faults``: the command line of the fault benchmark."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from presum.errors import UserError
from presum.experiments.command import WORKERS, exit_code_of, make_parser, whole_number
from presum.experiments.faults import null, table
from presum.experiments.faults.catalogue import Fault, choose
from presum.experiments.faults.judge import judge
from presum.experiments.faults.plan import MIN_WORKERS, Case, Plan
from presum.experiments.faults.sightings import read_result
from presum.experiments.launch import run_workers

_DESCRIPTION = """\
Trains small models with data-parallel workers, breaks one thing at a time, and shows whether presum
found it: under which check, on which ranks, after how many steps, and whether the same training
without the fault (its clean twin) stayed quiet.

The faults are public reports of trainings that went wrong while the averaged loss looked normal,
and further ones that a statistic must show. Every run leaves its folder in OUT."""

_EXAMPLES = """\
examples:
  presum faults --list
      what is injected, where, and what must be found; and what cannot be injected
  presum faults
      all of it: minutes on two cores
  presum faults --faults 12,22,doubled-gradient --out broken
      some of it, by row or name; then look:  presum report broken/doubled-gradient
  presum faults --null 20
      no fault: 20 runs of 500 steps, and how many raise an alarm
  presum faults --simulate
      no training: the detectors alone on synthetic steps (see presum faults --simulate --help)

exit codes: 0 all found, rightly named, and no false alarm; 1 otherwise; 2 bad use"""


def main(argv: list[str]) -> int:
    """Runs the benchmark and prints its table. Returns 0 if all went as it should, else 1.

    Raises UserError for inputs that cannot be used, SystemExit for a wrong command line.
    """
    options = _parser().parse_args(argv)
    if options.workers < MIN_WORKERS:
        raise UserError(f"--workers {options.workers}: at least {MIN_WORKERS}")
    if options.list:
        as_list = table.list_as_json if options.format == "json" else table.render_list
        _print(as_list(options.workers))
        return 0
    run = _null if options.null else _benchmark
    return exit_code_of(lambda: run(options))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("faults", _DESCRIPTION, _EXAMPLES)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--faults",
        type=_names,
        default=[],
        metavar="LIST",
        help="comma-separated names or rows (default all)",
    )
    what.add_argument(
        "--null", type=whole_number, metavar="N", help="instead: N long runs without a fault"
    )
    what.add_argument("--list", action="store_true", help="show what would be injected, and stop")
    what.add_argument(
        "--simulate",
        action="store_true",  # the C++ command takes it before it comes here
        help="instead: the detectors alone on synthetic steps, without training; "
        "other options: presum faults --simulate --help",
    )
    _add_training(parser)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=whole_number,
        default=WORKERS,
        metavar="N",
        help=f"worker processes (default {WORKERS})",
    )
    parser.add_argument(
        "--steps", type=whole_number, metavar="N", help="steps of each run (default: by fault)"
    )
    parser.add_argument(
        "--data",
        default="builtin",
        metavar="FILE",
        help="alpaca-format .json or .jsonl, or 'builtin': generated records (default builtin)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("faults"),
        metavar="DIR",
        help="folder that the run folders go into (default faults)",
    )
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="(default 42)")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="(default text)")


def _names(text: str) -> list[str]:
    return text.split(",")


def _benchmark(options: argparse.Namespace) -> int:
    faults = [with_steps(fault, options.steps) for fault in choose(options.faults)]
    runs = {case.folder: case for fault in faults for case in (fault.case, fault.twin)}
    _train(tuple(runs.values()), options)
    results = {folder: read_result(options.out / folder) for folder in runs}
    outcomes = [
        judge(f, results[f.case.folder], results[f.twin.folder], workers=options.workers)
        for f in faults
    ]
    as_json = table.as_json(outcomes, workers=options.workers, seed=options.seed)
    _print(as_json if options.format == "json" else table.render(outcomes))
    return 0 if as_json["passed"] else 1


def with_steps(fault: Fault, steps: int | None) -> Fault:
    """The fault in a run of so many steps. Raises UserError where it would begin after its end."""
    if steps is None:
        return fault
    if steps <= fault.begins:
        raise UserError(f"--steps {steps}: {fault.name} begins at step {fault.begins}")
    return replace(fault, configuration=replace(fault.configuration, steps=steps))


def _null(options: argparse.Namespace) -> int:
    cases = null.cases(options.null, steps=options.steps)
    _train(cases, options)
    runs = [null.NullRun(c, read_result(options.out / c.folder).findings) for c in cases]
    as_json = null.as_json(runs, workers=options.workers, seed=options.seed)
    _print(as_json if options.format == "json" else null.render(runs))
    return 0 if as_json["passed"] else 1


def _train(cases: Sequence[Case], options: argparse.Namespace) -> None:
    """All cases, in one launch of processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = "1"
    from presum.experiments.faults.data import make_corpus
    from presum.experiments.faults.worker import run_all
    from presum.experiments.folders import replace_folders

    plan = Plan(
        cases=tuple(cases),
        corpus=make_corpus(options.data),
        out=options.out,
        seed=options.seed,
        workers=options.workers,
    )
    replace_folders(options.out / case.folder for case in cases)
    run_workers(run_all, plan, workers=options.workers)


def _print(what: str | dict[str, Any]) -> None:
    print(what if isinstance(what, str) else json.dumps(what, indent=2))
