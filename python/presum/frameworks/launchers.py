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
    module = list(command[1:3]) if PYTHON.fullmatch(first) else []
    if first == "torchrun" or (module[:1] == ["-m"] and module[-1] in TORCHRUN):
        skipped = 1 if first == "torchrun" else 3
        from torch.distributed.run import get_args_parser

        return _parsed(command, skipped, get_args_parser(), under)
    named = first == "accelerate" and command[1:2] == ["launch"]
    if named or (module[:1] == ["-m"] and module[1:] == ["accelerate.commands.launch"]):
        from accelerate.commands.launch import launch_command_parser

        return _parsed(command, 2 if named else 3, launch_command_parser(), under)
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


def _after_python(command: Sequence[str], under: Sequence[str]) -> list[str]:
    """Before what the first Python of the command runs."""
    for at, word in enumerate(command):
        if PYTHON.fullmatch(Path(word).name):
            at += 1
            while at < len(command) and command[at].startswith("-") and command[at] != "-m":
                if command[at] == "-c":
                    raise UserError("run: a program after python -c cannot be run under presum")
                at += 2 if command[at] in ("-X", "-W") else 1
            return [*command[:at], "-m", *under, *command[at:]]
    raise UserError(f"run: no torchrun, accelerate, deepspeed or python in: {' '.join(command)}")
