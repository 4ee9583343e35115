# SPDX-License-Identifier: Apache-2.0
"""The command line of the fault benchmark."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from experiments.command import WORKERS, exit_code_of, make_parser, whole_number
from experiments.launch import WorkerError, run_workers
from faults import by_mpi, null, table, ways
from faults.catalog import choose
from faults.fault import Fault
from faults.judge import judge
from faults.plan import MIN_WORKERS, MINORITY_WORKERS, Case, Plan
from faults.sightings import DONE, is_done, read_result
from faults.ways import WAYS, Tried
from presum.errors import UserError

_DESCRIPTION = """\
Trains small models on data-parallel ranks, breaks one thing at a time, and shows whether presum
found it: with which check, on which ranks, after how many steps, and whether the same training
without the fault (its clean twin) stayed quiet.
The faults are public reports of trainings that went wrong while the averaged loss looked normal,
and more faults that a statistic must show. Every run leaves its folder in OUT."""

_EXAMPLES = """\
examples:
  make faults FAULTS=--list
      what is injected, where, and what must be found; and what cannot be injected
  make faults QUICK=1
      each fault once, with 4 workers: 10 minutes on two cores
  make faults
      everything, each fault on two models, with 2, 4 and 8 workers: about an hour. Existing runs
      are not repeated
  make faults FAULTS="--faults 12,22,doubled-gradient --out broken"
      some faults, by row or name; then look:  presum report broken/8-workers/doubled-gradient
  make faults FAULTS="--null 20"
      no fault: 20 runs of 500 steps, and how many raise an alarm
  make faults FAULTS="--ways all --document docs/ways.md"
      each fault in each way of training; existing runs are not repeated
Workers are ranks of the process group.
exit codes: 0 all found, named correctly, and no false alarm; 1 otherwise; 2 invalid use"""


def main(argv: list[str]) -> int:
    """Run the benchmark and print its table. Returns 0 if everything passed, else 1.

    Raises UserError for unusable inputs, SystemExit for an invalid command line.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.null and options.faults:
        parser.error("argument --faults: not allowed with argument --null")
    if min(options.workers) < MIN_WORKERS:
        raise UserError(f"--workers {min(options.workers)}: must be at least {MIN_WORKERS}")
    if options.list:
        as_list = table.list_as_json if options.format == "json" else table.render_list
        _print(as_list(options.workers[0]))
        return 0
    run = _null if options.null else _ways if options.ways else _benchmark
    return exit_code_of(lambda: run(options))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m faults", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "--faults",
        type=_names,
        default=[],
        metavar="LIST",
        help="comma-separated names or rows (default all)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--null", type=whole_number, metavar="N", help="instead: N long runs without a fault"
    )
    what.add_argument(
        "--ways",
        type=_names,
        metavar="LIST",
        help="instead: each fault on its first model in each of these ways of training, and what "
        f"each check saw: {', '.join(WAYS)}, or all",
    )
    what.add_argument("--list", action="store_true", help="show what would be injected, and exit")
    _add_training(parser)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=_whole_numbers,
        default=[WORKERS],
        metavar="LIST",
        help="numbers of ranks, such as 8 or 2,4,8, used one after another; below "
        f"{MINORITY_WORKERS} some faults are skipped (default {WORKERS})",
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
        default=Path("build/faults"),
        metavar="DIR",
        help="folder for the run folders and the table (default build/faults)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"each fault only on its first model, with {MINORITY_WORKERS} ranks",
    )
    parser.add_argument(
        "--document",
        type=Path,
        metavar="FILE",
        help="also write the outcomes of public reports into this Markdown file, between its marks",
    )
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="(default 42)")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="(default text)")


def _names(text: str) -> list[str]:
    return text.split(",")


def _whole_numbers(text: str) -> list[int]:
    return [whole_number(part) for part in text.split(",")]


def _benchmark(options: argparse.Namespace) -> int:
    chosen = [f for f in choose(options.faults) if not (options.quick and f.variant)]
    faults = [with_steps(fault, options.steps) for fault in chosen]
    counts = [MINORITY_WORKERS] if options.quick else options.workers
    if options.faults:
        _refuse_what_cannot_run(faults, counts)
    outcomes = []
    for workers in counts:
        possible = [fault for fault in faults if fault.runs_with(workers)]
        runs = {case.folder: case for fault in possible for case in (fault.case, fault.twin)}
        folder = _train(tuple(runs.values()), options, workers)
        results = {name: read_result(folder / name) for name in runs}
        outcomes += [
            judge(f, results[f.case.folder], results[f.twin.folder], workers=workers)
            for f in possible
        ]
    (options.out / "table.md").write_text(table.markdown(outcomes), encoding="utf-8")
    if options.document is not None:
        table.write_into(options.document, outcomes)
    as_json = table.as_json(outcomes, seed=options.seed)
    _print(as_json if options.format == "json" else table.render(outcomes))
    return 0 if as_json["passed"] else 1


def _ways(options: argparse.Namespace) -> int:
    chosen = list(WAYS) if options.ways == ["all"] else options.ways
    unknown = [way for way in chosen if way not in WAYS]
    if unknown:
        raise UserError(f"--ways {unknown[0]}: unknown way (known: {', '.join(WAYS)})")
    tried = [one for way in chosen for one in _tried(way, options)]
    found = ways.cells(tried)
    text = ways.markdown(found, chosen)
    (options.out / "ways.md").write_text(text, encoding="utf-8")
    if options.document is not None:
        table.put_between(options.document, text)
    _print(text)
    missed = any(cell.text.startswith("missed") for row in found.values() for cell in row.values())
    return 1 if missed else 0


def _tried(way: str, options: argparse.Namespace) -> list[Tried]:
    """Every fault in one way of training."""
    faults = [ways.in_way(f, way) for f in choose(options.faults) if not f.variant]
    possible = [f for f in faults if f.runs_with(MINORITY_WORKERS)]
    if way == "mpi":
        names = by_mpi.names()
        goes = [f.case for f in possible if f.name.removesuffix("-mpi") in names]
        folder, broken = by_mpi.train(goes, options.out / "mpi"), set[Case]()
    else:
        goes = [f.case for f in possible if ways.can_be_injected(f)]
        folder, broken = _train_what_goes(goes, options)
    broken |= {f.case for f in possible} - {*goes}
    plain = next((folder / f.case.folder for f in possible if f.case not in broken), folder)
    tried = []
    for fault in possible:
        run, outcome = plain, None
        if fault.case not in broken:
            run = folder / fault.case.folder
            result = read_result(run)
            twin = result._replace(findings=[])
            outcome = judge(fault, result, twin, workers=MINORITY_WORKERS)
        tried.append(Tried(way, fault, outcome, ways.reason_of(run, fault.expects)))
    return tried


def _train_what_goes(cases: Sequence[Case], options: argparse.Namespace) -> tuple[Path, set[Case]]:
    """Train as `_train` does, but skip cases that cannot be trained this way: if one breaks, the
    others continue without it."""
    broken: set[Case] = set()
    while True:
        left = [case for case in cases if case not in broken]
        try:
            return _train(left, options, MINORITY_WORKERS), broken
        except WorkerError as error:
            folder = options.out / f"{MINORITY_WORKERS}-workers"
            broke = next(case for case in left if not (folder / case.folder / DONE).exists())
            print(f"{broke.folder}: {error}", file=sys.stderr)
            broken.add(broke)


def _refuse_what_cannot_run(faults: Sequence[Fault], counts: Sequence[int]) -> None:
    for workers, fault in product(counts, faults):
        if not fault.runs_with(workers):
            needs = f"at least {fault.least_workers}"
            needs = needs if workers < fault.least_workers else "an even number"
            raise UserError(f"--workers {workers}: {fault.name} needs {needs}")


def with_steps(fault: Fault, steps: int | None) -> Fault:
    """The fault in a run of this many steps. Raises UserError if it would begin after the end."""
    if steps is None:
        return fault
    if steps <= fault.begins:
        raise UserError(f"--steps {steps}: {fault.name} begins at step {fault.begins}")
    return replace(fault, configuration=replace(fault.configuration, steps=steps))


def _null(options: argparse.Namespace) -> int:
    cases = null.cases(options.null, steps=options.steps)
    runs = []
    for workers in options.workers:
        folder = _train(cases, options, workers)
        runs += [null.NullRun(c, workers, read_result(folder / c.folder).findings) for c in cases]
    as_json = null.as_json(runs, seed=options.seed)
    _print(as_json if options.format == "json" else null.render(runs))
    return 0 if as_json["passed"] else 1


def _train(cases: Sequence[Case], options: argparse.Namespace, workers: int) -> Path:
    """Run all cases that have no result yet, in one launch of processes. Returns their folder."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = "1"
    from experiments.folders import replace_folders
    from faults.data import make_corpus
    from faults.worker import run_all

    plan = Plan(
        cases=tuple(cases),
        corpus=make_corpus(options.data),
        data=options.data,
        out=options.out / f"{workers}-workers",
        seed=options.seed,
        workers=workers,
    )
    missing = [c for c in cases if not is_done(plan.out / c.folder, plan.signature(c))]
    if len(missing) < len(cases):
        print(f"{len(cases) - len(missing)} of {len(cases)} runs exist already", file=sys.stderr)
    replace_folders(plan.out / case.folder for case in missing)
    if missing:
        run_workers(run_all, replace(plan, cases=tuple(missing)), workers=workers)
    return plan.out


def _print(what: str | dict[str, Any]) -> None:
    print(what if isinstance(what, str) else json.dumps(what, indent=2))
