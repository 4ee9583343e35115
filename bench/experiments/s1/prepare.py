# SPDX-License-Identifier: Apache-2.0
"""Turns the command line's options into a plan: reads data, makes the tokenizer, encodes
records."""

import argparse
from pathlib import Path

from experiments.s1.builtin_data import generate
from experiments.s1.model import ModelSource, check_length, load_tokenizer
from experiments.s1.plan import Plan
from experiments.s1.records import Record, load_records
from experiments.s1.settings import S1Run
from experiments.s1.template import encode_all, prompt
from presum.errors import UserError

AS_ASKED = ("steps", "batch", "max_length", "dtype", "lr", "seed", "out", "save_models")


def make_plan(
    options: argparse.Namespace, *, runs: tuple[S1Run, ...], workers: int
) -> tuple[Plan, int]:
    """The plan, and the number of records dropped because their prompt fills ``max_length``.

    Raises UserError for unusable data, tokenizers and model folders, and if fewer records than
    ranks are left.
    """
    source = model_source(options)
    records = read_data(options.data)
    check_length(source, max_length=options.max_length)
    tokenizer = load_tokenizer(source, texts=[prompt(r) + r.output for r in records])
    examples = encode_all(records, tokenizer=tokenizer, max_length=options.max_length)
    if len(examples) < workers:
        raise UserError(
            f"--data {options.data}: {len(examples)} records with room for a response within "
            f"--max-length {options.max_length}, fewer than {workers} ranks"
        )
    plan = Plan(
        runs=runs,
        workers=workers,
        source=source,
        data_name=Path(options.data).name,
        tokenizer=tokenizer,
        examples=tuple(examples),
        **{name: getattr(options, name) for name in AS_ASKED},
    )
    return plan, len(records) - len(examples)


def model_source(options: argparse.Namespace) -> ModelSource:
    """Where the model comes from, according to ``--model``, ``--preset`` and
    ``--trust-remote-code``."""
    if options.preset or options.model == "builtin":
        return ModelSource(shape=options.preset or "builtin")
    return ModelSource(path=Path(options.model), trust_remote_code=options.trust_remote_code)


def read_data(data: str) -> list[Record]:
    """The records of the file ``data``, or generated ones for ``builtin``."""
    return generate() if data == "builtin" else load_records(Path(data))
