# SPDX-License-Identifier: Apache-2.0
"""presum does not change shell scripts: it prints the lines to write instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SHELL = re.compile(r"(ba|da|k|z)?sh")
SHEBANG = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")
UNDER = re.compile(r"\bpresum[ .]run\b")
OPENING = 1 << 18  # characters of a script that are read
SHOWN = 3  # lines at most


def _command(name: str) -> re.Pattern[str]:
    """Matches a command in a line of a script, with its folder and quotes."""
    return re.compile(rf'"[^"\s]*{name}"(?=\s)|(?<![\w./~$}}-])[\w./~${{}}-]*{name}(?=\s)')


STARTS_RANKS = (
    _command(r"(torchrun|accelerate[- ]launch|deepspeed|fabric run)"),
    _command(r"python[\d.]*(?=\s[^|;&]*-m (torch\.distributed|accelerate\.|deepspeed\.))"),
    _command(r"python[\d.]*(?=\s[^|;&]*\.py\b)"),
)


class Script(NamedTuple):
    name: str
    text: str


def script_at(command: Sequence[str], at: int) -> Script | None:
    """The shell script that this word of a command names, or passes to a shell."""
    word = command[at]
    if SHELL.fullmatch(Path(word).name):
        return _of_shell(command[at + 1 :])
    text = _text(word)
    if text is not None and (word.endswith(".sh") or SHEBANG.match(text)):
        return Script(word, text)
    return None


def _of_shell(words: Sequence[str]) -> Script | None:
    for place, word in enumerate(words):
        if not word.startswith("-"):
            return Script(word, _text(word) or "")
        if re.fullmatch(r"-\w*c", word) and place + 1 < len(words):
            return Script("the shell's -c argument", words[place + 1])
    return None


def _text(word: str) -> str | None:
    if not Path(word).is_file():
        return None
    try:
        with Path(word).open(encoding="utf-8") as file:
            return file.read(OPENING)
    except (OSError, UnicodeDecodeError):
        return None


def lines_to_type(script: Script, options: Sequence[str]) -> str:
    """The script's lines that start ranks, with presum run inserted; "" if there are none."""
    under = shlex.join(["presum", "run", *options, "--"])
    lines = [line for line in _logical_lines(script.text) if not UNDER.search(line)]
    for command in STARTS_RANKS:
        found = [(line, at.start()) for line in lines if (at := command.search(line))]
        if found:
            return "\n".join(f"  {line[:at]}{under} {line[at:]}" for line, at in found[:SHOWN])
    return ""


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and echo commands, with continuation lines joined."""
    joined = re.sub(r"[ \t]*\\\n\s*", " ", text)
    lines = [line.strip() for line in joined.splitlines()]
    return [line for line in lines if not line.startswith(("#", "echo "))]
