# SPDX-License-Identifier: Apache-2.0
"""``presum run [options] -- LAUNCHER ... train.py args...``: a launcher whose ranks run under
``presum.run``.

torchrun and accelerate launch are read by their own parsers, so that nothing has to be known of
their options. Of the others the Python that starts the program is found (mpirun, srun, a shell's
own line), or, for deepspeed, the program.
"""

from __future__ import annotations

import os
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from presum.errors import UserError

USAGE = "presum run [options] -- torchrun --nproc-per-node N train.py args..."
PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")
TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


def run(words: Sequence[str]) -> NoReturn:
    """Becomes the launcher. Raises UserError for what cannot be read."""
    if "--" not in words:
        raise UserError(f"run needs the command after --, as in: {USAGE}")
    at = list(words).index("--")
    command = rewritten(words[at + 1 :], words[:at])
    if shutil.which(command[0]) is None:
        raise UserError(f"run: there is no command {command[0]}")
    os.execvp(command[0], command)


def rewritten(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """The command with ``presum.run`` and its options before the program that ranks run."""
    if not command:
        raise UserError(f"run needs a command after --, as in: {USAGE}")
    under = ["presum.run", *options]
    first = Path(command[0]).name
    at = _of_interpreter(command, 0) if PYTHON.fullmatch(first) else 0
    script = Path(command[at]).name if at < len(command) else ""
    module = command[at + 1] if script == "-m" and at + 1 < len(command) else ""
    if script == "torchrun" or module in TORCHRUN:
        from torch.distributed.run import get_args_parser

        return _parsed(command, at + (2 if module else 1), get_args_parser(), under)
    named = script == "accelerate" and list(command[at + 1 : at + 2]) == ["launch"]
    if named or module == "accelerate.commands.launch":
        from accelerate.commands.launch import launch_command_parser

        return _parsed(command, at + 2, launch_command_parser(), under)
    if first == "deepspeed":
        at = _first_program(command)
        return [*command[:at], "--module", *under, *command[at:]]
    return _after_python(command, under)


def _parsed(
    command: Sequence[str], skipped: int, parser: ArgumentParser, under: Sequence[str]
) -> list[str]:
    """By the launcher's own parser: what it takes for the program and its arguments."""
    try:
        found: Namespace = parser.parse_args(list(command[skipped:]))
    except SystemExit:
        raise UserError("run: the launcher does not take these arguments") from None
    if getattr(found, "no_python", False):
        raise UserError("run: with --no-python the launcher starts a program of its own kind")
    arguments = [found.training_script, *found.training_script_args]
    head = list(command[: len(command) - len(arguments)])
    if not found.module:
        return [*head, "-m", *under, *arguments]
    return [*head, *under, "-m", *arguments]


def _first_program(command: Sequence[str]) -> int:
    for at, word in enumerate(command):
        if at > 0 and (word.endswith(".py") and Path(word).is_file()):
            return at
    raise UserError(f"run: no program in: {' '.join(command)}")


def _of_interpreter(command: Sequence[str], at: int) -> int:
    """Where what the Python at ``at`` runs begins: behind its own options."""
    at += 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        word = command[at]
        if word.startswith("--"):
            raise UserError(f"run: {word} is no option of Python's with which a program runs")
        if "c" in word[1:] and word[1] not in "XW":
            raise UserError("run: a program after python -c cannot be run under presum")
        if "m" in word[1:] and word[1] not in "XW":
            raise UserError(f"run: write -m apart from the other options of {word}")
        at += 2 if word in ("-X", "-W") else 1
    return at


def _after_python(command: Sequence[str], under: Sequence[str]) -> list[str]:
    """Before what the first Python of the command runs."""
    for place, word in enumerate(command):
        if PYTHON.fullmatch(Path(word).name):
            at = _of_interpreter(command, place)
            return [*command[:at], "-m", *under, *command[at:]]
    raise UserError(f"run: no torchrun, accelerate, deepspeed or python in: {' '.join(command)}")
