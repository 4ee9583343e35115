# SPDX-License-Identifier: Apache-2.0
"""``presum run [options] -- LAUNCHER ... train.py args...``: a launcher whose ranks run under
``presum.run``.

Launchers that read options of their own are read by their own parsers, so that nothing has to be
known of these. Of other commands (mpirun, srun) the Python that starts the program is found.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from presum.errors import UserError
from presum.frameworks.shell_scripts import lines_to_type, script_at

EXAMPLE = "presum run [options] -- torchrun --nproc-per-node N train.py args..."
PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")
RUN = str(Path(__file__).parents[1] / "run.py")
Words = Sequence[str]


def run(command: Words, options: Words) -> NoReturn:
    """Becomes the launcher. Raises UserError for what cannot be read."""
    command = rewritten(command, options)
    if shutil.which(command[0]) is None:
        raise UserError(f"run: there is no command {command[0]}")
    os.execvp(command[0], command)


def rewritten(command: Words, options: Words) -> list[str]:
    """The command with ``presum.run`` and its options before the program that ranks run."""
    if not command:
        raise UserError(f"run needs the command that starts the training, as in: {EXAMPLE}")
    for at, word in enumerate(command):
        if PYTHON.fullmatch(Path(word).name):
            return _of_python(command, at, options)
        found = _of_launcher(command, at, options)
        if found is not None:
            return found
        _refuse_program(command, at, options)
    words = shlex.join(command)
    place = f"PRESUM=1 PRESUM_OPTIONS={shlex.quote(shlex.join(options))}" if options else "PRESUM=1"
    raise UserError(
        f"run: no torchrun, accelerate, deepspeed, fabric or python in: {words}. Where the program "
        f"begins with import presum, type: {place} {words}"
    )


def _refuse_program(command: Words, at: int, options: Words) -> None:
    """What starts ranks without a word of a launcher on this command line."""
    script = script_at(command, at)
    lines = "" if script is None else lines_to_type(script, options)
    if script is not None and lines:
        raise UserError(f"run: presum does not change {script.name}; write in it\n{lines}")
    if _is_started_itself(command, at):
        line = ["presum", "run", *options, "--", *command[:at], "python", *command[at:]]
        raise UserError(f"run: the Python of {command[at]} is not named; type: {shlex.join(line)}")


def _is_started_itself(command: Words, at: int) -> bool:
    """A file of Python's, by its first line or by ``uv run`` and the like."""
    word = command[at]
    if not (word.endswith(".py") and Path(word).is_file()):
        return False
    return at == 0 or command[at - 1] == "run" or ("/" in word and os.access(word, os.X_OK))


def _of_python(command: Words, place: int, options: Words) -> list[str]:
    at = _behind_options(command, place)
    found = _of_launcher(command, at, options)
    if found is not None:
        return found
    return [*command[:at], "-m", "presum.run", *options, *command[at:]]


def _of_launcher(command: Words, at: int, options: Words) -> list[str] | None:
    """None where none stands at this place."""
    there = (Path(command[at]).name if at < len(command) else "", *command[at + 1 :])
    for name, rewrite in LAUNCHERS.items():
        if there[: len(name)] == name:
            behind = at + len(name)
            return [*command[:behind], *rewrite(command[behind:], options)]
    return None


def _torchrun(words: Words, options: Words) -> list[str]:
    from torch.distributed.run import get_args_parser

    return _before_script(words, options, _parsed(get_args_parser().parse_args, words))


def _torch_launch(words: Words, options: Words) -> list[str]:
    from torch.distributed.launch import parse_args

    return _before_script(words, options, _parsed(parse_args, words))


def _accelerate(words: Words, options: Words) -> list[str]:
    from accelerate.commands.launch import launch_command_parser

    return _before_script(words, options, _parsed(launch_command_parser().parse_args, words))


def _deepspeed(words: Words, options: Words) -> list[str]:
    found = _parsed(import_module("deepspeed.launcher.runner").parse_args, words)
    if found.autotuning:
        raise UserError("run: with --autotuning deepspeed starts trainings of its own")
    found.training_script, found.training_script_args = found.user_script, found.user_args
    return _before_script(words, options, found, flag="--module")


def _fabric(words: Words, options: Words) -> list[str]:
    """It takes files only, and its own options behind them too."""
    return [RUN, *options, *words]


# Its name, or how Python is told to run it: what becomes of the words behind.
LAUNCHERS: dict[tuple[str, ...], Callable[[Words, Words], list[str]]] = {
    ("torchrun",): _torchrun,
    ("-m", "torch.distributed.run"): _torchrun,
    ("-m", "torch.distributed.launch"): _torch_launch,
    ("accelerate", "launch"): _accelerate,
    ("accelerate-launch",): _accelerate,
    ("-m", "accelerate.commands.launch"): _accelerate,
    ("deepspeed",): _deepspeed,
    ("-m", "deepspeed.launcher.runner"): _deepspeed,
    ("fabric", "run"): _fabric,
    ("-m", "lightning.fabric.cli"): _fabric,
}


def _parsed(parse: Callable[[list[str]], Namespace], words: Words) -> Namespace:
    try:
        return parse([*words])
    except SystemExit:
        raise UserError(
            "run: the launcher does not take these arguments; presum's own come before the launcher"
        ) from None


def _before_script(words: Words, options: Words, found: Namespace, flag: str = "-m") -> list[str]:
    """Where the launcher finds the program; of what is behind it a ``--`` may be gone."""
    arguments = [found.training_script, *found.training_script_args]
    head = [*words[: len(words) - len(arguments) + 1]]
    while head.pop() != found.training_script:
        pass
    if head[-1:] == ["--"]:
        head.pop()
    if found.no_python:
        return [*head, *rewritten(arguments, options)]
    if found.module:
        return [*head, "presum.run", *options, "-m", *arguments]
    if getattr(found, "run_path", False) or getattr(found, "launcher", "") == "slurm":
        return [*head, RUN, *options, *arguments]  # they take files only
    return [*head, flag, "presum.run", *options, *arguments]


def _behind_options(command: Words, at: int) -> int:
    """Where what the Python at ``at`` runs begins: behind its own options."""
    at += 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        word = command[at]
        if word.startswith("--"):
            raise UserError(f"run: {word} is no option of Python's with which a program runs")
        if "c" in word[1:] and word[1] not in "XW":
            raise UserError(
                "run: a program after python -c cannot be run under presum: put it into a file"
            )
        if "m" in word[1:] and word[1] not in "XW":
            raise UserError(f"run: write -m apart from the other options of {word}")
        at += 2 if word in ("-X", "-W") else 1
    return at
