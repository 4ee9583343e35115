# SPDX-License-Identifier: Apache-2.0
"""Run a training program under presum without changing it.

    torchrun --nproc-per-node 8 -m presum.run [options] train.py args...
    torchrun --nproc-per-node 8 -m presum.run [options] -m package.train args...
    accelerate launch -m presum.run train.py args...
    python -m presum.run train.py args...

Where a launcher cannot be told so, set PRESUM=1 in its environment and ``import presum`` first in
the program; options then come from PRESUM_OPTIONS alone, as they would stand on the command line.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pkgutil
import re
import runpy
import shlex
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from presum.errors import UserError, missing
from presum.options import FAMILIES, NAMES, from_file, unknown_check


def _parser(*, program: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m presum.run",
        description="Run a training program under presum without changing it: every "
        "DistributedDataParallel and FSDP2 model that it trains is watched, and a run is recorded.",
        epilog="example: torchrun --nproc-per-node 8 -m presum.run --run-folder runs/a train.py "
        "--lr 1e-4. Options may also stand in the environment variable PRESUM_OPTIONS, as they "
        "would here, and under their names in a table [tool.presum] of pyproject.toml, or in "
        "presum.toml, of the folder in which the program starts: reduced_every = 50. A flag comes "
        "before the environment, and that before a file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--run-folder",
        "--run",
        dest="run",
        metavar="RUN",
        help="folder to record into (default: runs/<script>-<time>); torchrun takes the short "
        "form for an option of its own",
    )
    _add_recording(add)
    _add_sums(add)
    _add_telling(add)
    if program:
        add("-m", dest="module", action="store_true", default=False, help="PROGRAM is a module")
        add("program", metavar="PROGRAM", help="the training script")
        add("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _add_recording(add: Callable[..., object]) -> None:
    add("--every", type=_positive, metavar="N", help="record every N-th step (default: 1)")
    add("--reduced-every", type=_positive, metavar="N", help="read the sum too (default: 25)")
    add("--verify-every", type=_positive, metavar="N", help="compute a micro-batch once more")
    add("--sketch", metavar="K", type=_whole, help="floats for a direction; 0 for none")
    add("--groups", action="append", metavar="REGEX", help="what per-group norms are of")
    add("--local-buffers", action="append", metavar="REGEX", help="buffers that may differ")
    add(
        "--fingerprints",
        type=_families,
        metavar="LIST",
        help="what is compared beside gradients and losses: all, none, or some, as data,rng",
    )


def _add_sums(add: Callable[..., object]) -> None:
    add("--reduction", metavar="exact", help="sum gradients exactly, so reproducibly")
    add("--microbatch-mean", action="store_true", help="with it: divide by all micro-batches")
    add("--audit", type=_positive, metavar="N", help="check the sum itself (DDP, FSDP2)")
    add("--audit-elements", type=_positive, metavar="K", help="of a bucket (default: 65536)")


def _add_telling(add: Callable[..., object]) -> None:
    add(
        "--preflight",
        type=_positive,
        metavar="N",
        help="end with a verdict after N steps, or where the program ends before",
    )
    add("--require", choices=("facts", "statistics"), help="statistics: end with 2 if too short")
    add(
        "--stall-seconds",
        type=_seconds,
        metavar="S",
        help="say where all ranks are once one has stood still so long (default: 60)",
    )
    add(
        "--on-stall",
        choices=("report", "raise", "exit"),
        help="what a job that stands still does besides (default: report)",
    )
    add(
        "--allow",
        action="append",
        type=_allowed,
        metavar="CHECK=REASON",
        help="findings of this check are a practice of the program: information, with the reason",
    )
    add("--quiet", action="store_true", help="print nothing")


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no whole number") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number") from None
    if not 1 <= value <= 1e8:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 1e8 s")
    return value


def _allowed(text: str) -> tuple[str, str]:
    check, _, reason = text.partition("=")
    if not reason.strip():
        raise argparse.ArgumentTypeError(f"{text} has no reason: write {check}=REASON")
    if unknown := unknown_check(check):
        raise argparse.ArgumentTypeError(unknown)
    return check, reason


def _families(text: str) -> list[str]:
    return {"all": [*FAMILIES], "none": []}.get(text, text.split(","))


def _options(found: argparse.Namespace) -> dict[str, Any]:
    """By their names: flags and environment before a file."""
    flags = {name: value for name, value in vars(found).items() if name in NAMES}
    if "allow" in flags:
        flags["allow"] = dict(flags["allow"])
    try:
        return from_file(Path.cwd()) | flags
    except UserError as error:
        _refuse(str(error))


class _CommandLine(NamedTuple):
    """Words in front of a program and the program with its arguments."""

    own: list[str]
    others: list[str]  # options of somebody else's, as a launcher puts them there
    program: list[str]


def _divided(words: Sequence[str], parser: argparse.ArgumentParser) -> _CommandLine:
    """The program is the first word that is neither an option nor an option's value, or what is
    behind ``--``. argparse would drop a ``--`` that is the program's."""
    own: list[str] = []
    others: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            at += 1
            break
        name, has_value, _ = words[at].partition("=")
        action = parser._option_string_actions.get(name)
        taken = 1 if action is None or has_value or action.nargs == 0 else 2
        (others if action is None else own).extend(words[at : at + taken])
        at += taken
    return _CommandLine(own, others, [*words[at:]])


def launcher_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of ``presum run``: the options, as ranks are to get them, and the launcher's command.
    SystemExit where options are wrong, or for help."""
    parser = _parser(program=False)
    parser.prog = "presum run"
    parser.usage = "presum run [options] [--] LAUNCHER [its options] PROGRAM [arguments]"
    line = _divided(words, parser)
    parser.parse_args([*line.own, *line.others])
    return [re.sub("^--run(?==|$)", "--run-folder", word) for word in line.own], line.program


def start_from_environment() -> None:
    """With PRESUM=1, when presum is imported."""
    _start(_parser(program=False).parse_args(_words_of_environment()))


def _start(found: argparse.Namespace, words: Sequence[str] | None = None) -> bool:
    """Whether it is a preflight."""
    options = _options(found)
    try:
        from presum.frameworks.auto import start
    except ModuleNotFoundError as error:
        _refuse(str(missing("watching a program", error)))
    try:
        start(options, words)
    except ValueError as error:
        _refuse(str(error).removeprefix("presum.attach: ").removeprefix("presum: "))
    return "preflight" in options


def _words_of_environment() -> list[str]:
    text = os.environ.get("PRESUM_OPTIONS", "")
    try:
        words = shlex.split(text)
    except ValueError as error:
        _refuse(f"PRESUM_OPTIONS: {error}: {text}")
    _, others = _parser(program=False).parse_known_args(words)
    if others:
        _refuse(f"PRESUM_OPTIONS holds what is no option: {' '.join(others)}")
    return words


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program in this process, as ``__main__``. What it raises passes through.

    Options that presum does not have are the program's: launchers put theirs (``--local_rank=1``)
    behind the first word of what they start.
    """
    parser = _parser(program=True)
    line = _divided(sys.argv[1:] if argv is None else argv, parser)
    _refuse_misspelled(line.others, parser)
    found = parser.parse_args([*_words_of_environment(), *line.own, "--", *line.program[:1]])
    if not found.module and not Path(found.program).exists():
        unknown = f"; presum has no option {line.others[-1]}" if line.others else ""
        _refuse(f"there is no file {found.program}{unknown}")
    folder = Path(found.program)
    if not found.module and folder.is_dir() and not (folder / "__main__.py").is_file():
        _refuse(f"there is no __main__.py in {found.program}")
    preflight = _start(found, line.own)
    sys.argv = [found.program, *line.others, *line.program[1:]]
    try:
        _run_module(found.program) if found.module else _run_script(found.program)
        if preflight:
            _end_preflights()
    except SystemExit as end:
        if preflight and end.code in (None, 0):
            _end_preflights()
        raise
    except BaseException as error:
        _show_as_its_own(error)
        raise


def _end_preflights() -> None:
    """Of a program that ended well, before the preflight did."""
    sessions = sys.modules.get("presum.transport.session")
    raise SystemExit(2 if sessions is None else sessions.end_preflights())


def _refuse_misspelled(others: Sequence[str], parser: argparse.ArgumentParser) -> None:
    for word in others:
        known = [name for name in parser._option_string_actions if name.startswith("--")]
        near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.8)
        if near:
            parser.error(f"there is no option {word}; did you mean {near[0]}?")


def _refuse(text: str) -> NoReturn:
    print(f"presum.run: {text}", file=sys.stderr)
    raise SystemExit(2)


def _run_script(path: str) -> None:
    """As ``python path`` does."""
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive of zipapp
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.path[0] = path
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    file = Path(path).absolute()
    sys.path[0] = str(file.resolve().parent)
    loader = SourceFileLoader("__main__", str(file))
    main_module = types.ModuleType("__main__")
    vars(main_module).update(
        __file__=str(file),
        __cached__=None,
        __loader__=loader,
        __builtins__=__builtins__,
        __annotations__={},
    )
    sys.modules["__main__"] = main_module
    exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(main_module))


def _run_module(name: str) -> None:
    """As ``python -m name`` does."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = str(Path.cwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _show_as_its_own(error: BaseException) -> None:
    """The traceback without our own frames; Python then ends the process as it always would."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    sys.excepthook = lambda *_: None


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>")


if __name__ == "__main__":
    main()
