# SPDX-License-Identifier: Apache-2.0
"""All that users may write: every verb's help, and the signature of all public Python, as they are
in tests/data/interface.txt; PRESUM_UPDATE_DOCS=1 writes that. A program that uses all of it."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

import presum
from experiments.launch import free_port
from programs_started import presum_command, run_command

GOLDEN = Path(__file__).parent / "data" / "interface.txt"
PROGRAM = Path(__file__).parent / "programs" / "typed.py"


def verbs() -> list[str]:
    said = presum_command("--help").stdout
    listed = said.partition("Subcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


def command_line() -> list[str]:
    wide = {"COLUMNS": "100"}
    lines = ["# presum --help", presum_command("--help").stdout]
    for verb in verbs():
        told = run_command([sys.executable, "-m", "presum", verb, "--help"], **wide)
        assert told.returncode == 0, told.stderr
        lines += [f"# presum {verb} --help", told.stdout]
    told = run_command([sys.executable, "-m", "presum.run", "--help"], **wide)
    return [*lines, "# python -m presum.run --help", told.stdout]


def signatures() -> list[str]:
    lines = ["# Python"]
    for name in dir(presum):
        value = getattr(presum, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            lines.append(f"presum.{name}({value.__base__.__name__})")
        elif inspect.isclass(value):
            lines += [f"presum.{name}{inspect.signature(value)}", *methods(name, value)]
        elif callable(value):
            lines.append(f"presum.{name}{inspect.signature(value)}")
        elif inspect.ismodule(value):
            for part in value.__all__:
                lines.append(f"presum.{name}.{part}{inspect.signature(getattr(value, part))}")
    return lines


def methods(name: str, of: type) -> list[str]:
    lines = []
    for part, value in sorted(vars(of).items()):
        function = getattr(value, "fget", getattr(value, "func", value))
        if part.startswith("_") or not callable(function):
            continue
        shown = "" if function is not value else inspect.signature(value)
        lines.append(f"presum.{name}.{part}{shown}")
    return lines


def test_the_interface_is_what_it_was() -> None:
    text = "\n".join([*command_line(), *signatures(), ""])
    text = text.replace(presum.__version__, "VERSION")
    text = re.sub(  # by address
        r"(?<=Excludes: ).*", lambda found: " ".join(sorted(found[0].split())), text
    )
    text = re.sub(r"(--?[\w-]+) (\S+), (?=--?[\w-]+ \2)", r"\1, ", text)  # Python 3.13 says so
    if os.environ.get("PRESUM_UPDATE_DOCS"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_every_verb_is_listed_once() -> None:
    listed = verbs()
    assert {"run", "doctor", "findings"} <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_program_that_uses_all_of_it_runs(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-port", str(free_port())]
    told = run_command([sys.executable, *launcher, PROGRAM, tmp_path / "run"])
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout == "steps 20 ranks 2 mean True\nsum True []\n"
