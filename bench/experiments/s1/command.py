# SPDX-License-Identifier: Apache-2.0
"""The command line of the S1 experiment: ``make s1``."""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command import WORKERS, exit_code_of, make_parser, whole_number
from experiments.launch import run_workers, under_torchrun
from experiments.s1.settings import MODES, SETTINGS, S1Run
from presum.errors import UserError

if TYPE_CHECKING:
    from experiments.s1.plan import Plan

_DESCRIPTION = """\
Fine-tunes a causal language model on data-parallel ranks whose seeds agree or differ, records what
the ranks disagree about before the all-reduce, and compares it with the expectation of
arXiv 2602.14462:
  S1-1  one seed for all ranks             strict alignment: low dispersion, high consistency
  S1-2  rank 0 has another seed            one rank deviates: moderate
  S1-3  every rank has its own seed        independent: high dispersion, low consistency
in two data modes:
  sharded     each rank reads its share of the data (DistributedSampler with the rank's seed)
  replicated  each rank reads all of the data, in the order of its own seed
Every run trains all parameters from the same initial model, with the loss on response tokens only.
It writes one run folder, OUT/<mode>-<setting>, and replaces an earlier run there. Workers are ranks
of the process group."""

_EXAMPLES = """\
examples:
  make s1 S1="--out demo"
      the whole experiment with a small model and generated data: minutes on two cores, no network
  make s1 S1="--out demo --mode replicated --settings S1-1,S1-3 --steps 20"
      only the two extremes
  make s1 S1="--out pangu --model ./openPangu-Embedded-1B-V1.1 --trust-remote-code \\
              --data alpaca.json --lr 2e-5 --save-models"
      a local checkpoint and a local alpaca-format file
  PYTHONPATH=bench torchrun --nproc-per-node 8 -m experiments.s1 --out demo \\
      --preset openpangu-1b --lr 2e-5
      as ranks of a launcher, on GPUs

afterwards:
  presum summary demo/*-S1-*   presum check demo/replicated-S1-1"""

EMULATED = (
    "S1: fp32, because this processor has neither AVX512-BF16 nor AMX and would emulate bf16 "
    "(--dtype bf16 does)"
)


def main(argv: list[str]) -> int:
    """Run the experiment and print its table. Returns 0, or 1 if a rank failed.

    Raises UserError for unusable inputs, SystemExit for an invalid command line.
    """
    options = options_parser().parse_args(argv)
    return exit_code_of(lambda: _run(options))


def options_parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m experiments.s1", _DESCRIPTION, _EXAMPLES)
    _add_what(parser.add_argument_group("what is compared"))
    _add_model_and_data(parser.add_argument_group("model and data"))
    _add_training(parser.add_argument_group("training"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers",
        type=whole_number,
        metavar="N",
        help=f"number of ranks (default {WORKERS}; under torchrun its world size)",
    )
    group.add_argument(
        "--mode", choices=[*MODES, "both"], default="both", help="data mode (default both)"
    )
    group.add_argument(
        "--settings",
        type=_settings,
        default=SETTINGS,
        metavar="LIST",
        help=f"comma-separated settings (default {','.join(SETTINGS)})",
    )


def _add_model_and_data(group: argparse._ArgumentGroup) -> None:
    model = group.add_mutually_exclusive_group()
    model.add_argument(
        "--model",
        default="builtin",
        metavar="PATH",
        help="folder of a Hugging Face checkpoint, or 'builtin': a Llama of 1.2 M parameters, "
        "byte-level BPE trained on the data (default builtin)",
    )
    model.add_argument(
        "--preset",
        choices=["openpangu-1b"],
        help="instead of --model: openPangu-Embedded-1B's shape, untrained, for GPUs",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that the --model folder contains (default: never)",
    )
    group.add_argument(
        "--data",
        default="builtin",
        metavar="PATH",
        help="alpaca-format .json or .jsonl (instruction, input, output), or 'builtin': 1000 "
        "generated records (default builtin)",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--steps", type=whole_number, default=40, metavar="N", help="steps of each run (default 40)"
    )
    group.add_argument(
        "--batch",
        type=whole_number,
        default=2,
        metavar="N",
        help="records per rank and step (default 2)",
    )
    group.add_argument(
        "--max-length",
        type=whole_number,
        default=1024,
        metavar="N",
        help="maximum tokens per record; the response is cut (default 1024)",
    )
    group.add_argument(
        "--dtype",
        choices=["bf16", "fp32"],
        help="bf16: mixed precision over fp32 parameters (default bf16; on processors without "
        "AVX512-BF16 and AMX, which emulate it, fp32)",
    )
    group.add_argument(
        "--lr",
        type=_positive,
        default=1e-3,
        metavar="X",
        help="AdamW's constant learning rate (default 1e-3; use about 2e-5 for a pretrained model)",
    )
    group.add_argument(
        "--seed", type=int, default=42, metavar="N", help="the base seed (default 42)"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out",
        type=Path,
        default=Path("build/s1"),
        metavar="DIR",
        help="folder for the run folders (default build/s1)",
    )
    group.add_argument(
        "--save-models",
        action="store_true",
        help="write each trained model to OUT/<run>/model as a Hugging Face checkpoint with a card",
    )


def _settings(text: str) -> tuple[str, ...]:
    names = text.split(",")
    for name in names:
        if name not in SETTINGS:
            raise argparse.ArgumentTypeError(
                f"unknown setting '{name}' (known: {', '.join(SETTINGS)})"
            )
    return tuple(setting for setting in SETTINGS if setting in names)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return value


def _run(options: argparse.Namespace) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    workers = _worker_count(options.workers)
    from experiments.folders import replace_folders
    from experiments.s1.prepare import make_plan

    leads = int(os.environ.get("RANK", "0")) == 0
    choose_dtype(options, shown=leads)
    modes = MODES if options.mode == "both" else (options.mode,)
    runs = tuple(S1Run(mode, setting) for mode in modes for setting in options.settings)
    plan, dropped = make_plan(options, runs=runs, workers=workers)
    if leads:
        replace_folders(plan.folder(run) for run in runs)
        _announce(plan, dropped=dropped)
    _train(plan)
    if leads:
        _conclude(plan)
    return 0


def choose_dtype(options: argparse.Namespace, *, shown: bool) -> None:
    """Sets ``--dtype`` if it was not given: fp32 on a processor that emulates bf16."""
    from experiments.s1.worker import emulates_bf16

    if options.dtype is None:
        options.dtype = "fp32" if emulates_bf16() else "bf16"
        if shown and options.dtype == "fp32":
            print(EMULATED, file=sys.stderr)


def _worker_count(asked: int | None) -> int:
    if not under_torchrun():
        return asked or WORKERS
    world = int(os.environ["WORLD_SIZE"])
    if asked not in (None, world):
        raise UserError(f"--workers {asked}: the launcher started {world} ranks")
    return world


def _announce(plan: "Plan", *, dropped: int) -> None:
    if dropped:
        print(
            f"{dropped} records dropped: their prompts alone reach --max-length "
            f"{plan.max_length} tokens",
            file=sys.stderr,
        )
    print(
        f"S1: {len(plan.runs)} runs of {plan.steps} steps, {plan.workers} ranks x {plan.batch} "
        f"of {len(plan.examples)} records, model {plan.source.name}, {plan.dtype}",
        file=sys.stderr,
        flush=True,
    )


def _train(plan: "Plan") -> None:
    from experiments.s1.worker import run_all

    if under_torchrun():
        run_all(plan)
    else:
        run_workers(run_all, plan, workers=plan.workers)


def _conclude(plan: "Plan") -> None:
    import presum
    from experiments.s1.table import render, summarize

    summaries = {run: summarize(presum.load(str(plan.folder(run))).steps) for run in plan.runs}
    print(f"\n{render(summaries, workers=plan.workers)}\n")
    print(f"More details:  presum summary {plan.out}/*-S1-*")
    print(f"               presum check {plan.folder(plan.runs[-1])}")
