# SPDX-License-Identifier: Apache-2.0
"""``presum run [options] -- LAUNCHER ... train.py args...``: start a launcher whose ranks run under
``presum.run``.

A launcher's command line is parsed by the launcher's own parser, so presum need not know its
options. In other commands (mpirun, srun), presum looks for the Python that starts the program.
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
    """Replace this process with the launcher. Raises UserError for a command that cannot be
    parsed."""
    command = rewritten(command, options)
    if shutil.which(command[0]) is None:
        raise UserError(f"run: there is no command {command[0]}")
    os.execvp(command[0], command)


def rewritten(command: Words, options: Words) -> list[str]:
    """The command with ``presum.run`` and its options inserted before the program that the ranks
    run."""
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
        f"run: no torchrun, accelerate, deepspeed, fabric or python in: {words}. If the program "
        f"begins with import presum, type: {place} {words}"
    )


def _refuse_program(command: Words, at: int, options: Words) -> None:
    """Refuse a word that starts ranks although no launcher is on this command line."""
    script = script_at(command, at)
    lines = "" if script is None else lines_to_type(script, options)
    if script is not None and lines:
        raise UserError(f"run: presum does not change {script.name}; write in it\n{lines}")
    if _is_started_itself(command, at):
        line = ["presum", "run", *options, "--", *command[:at], "python", *command[at:]]
        raise UserError(
            f"run: the command does not name the Python of {command[at]}; type: {shlex.join(line)}"
        )


def _is_started_itself(command: Words, at: int) -> bool:
    """Whether a Python file is started through its first line, or by ``uv run`` and the like."""
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
    """None if there is no launcher at this place."""
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
        raise UserError("run: deepspeed --autotuning starts other trainings: not supported")
    found.training_script, found.training_script_args = found.user_script, found.user_args
    return _before_script(words, options, found, flag="--module")


def _fabric(words: Words, options: Words) -> list[str]:
    """fabric takes only files, and accepts its own options after them too."""
    return [RUN, *options, *words]


# A launcher's name, or how Python starts it, and the function that rewrites the words after it.
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
            "run: the launcher rejects these arguments; put presum's own before the launcher"
        ) from None


def _before_script(words: Words, options: Words, found: Namespace, flag: str = "-m") -> list[str]:
    """Insert presum.run where the launcher finds the program. The parser may have dropped a ``--``
    after it."""
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
        return [*head, RUN, *options, *arguments]  # they take only files
    return [*head, flag, "presum.run", *options, *arguments]


def _behind_options(command: Words, at: int) -> int:
    """The place after the options of the Python at ``at``."""
    at += 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        word = command[at]
        if word.startswith("--"):
            raise UserError(f"run: python {word} does not run a program")
        if "c" in word[1:] and word[1] not in "XW":
            raise UserError(
                "run: a program after python -c cannot be run under presum: put it into a file"
            )
        if "m" in word[1:] and word[1] not in "XW":
            raise UserError(f"run: write -m apart from the other options in {word}")
        at += 2 if word in ("-X", "-W") else 1
    return at
