# SPDX-License-Identifier: Apache-2.0
"""Run a training program under presum without changing it.

    torchrun --nproc-per-node 8 -m presum.run [options] train.py args...
    torchrun --nproc-per-node 8 -m presum.run [options] -m package.train args...
    accelerate launch -m presum.run train.py args...
    python -m presum.run train.py args...

If a launcher cannot start a module, set PRESUM=1 in its environment and ``import presum`` first in
the program. Options then come from PRESUM_OPTIONS, in the syntax of the command line, and from
option files.
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
        description="Run a training program under presum without changing it: presum records every "
        "DistributedDataParallel and FSDP2 model that the program trains.",
        epilog="example: torchrun --nproc-per-node 8 -m presum.run --run-folder runs/a train.py "
        "--lr 1e-4. Options can also be set in the environment variable PRESUM_OPTIONS, in the "
        "same syntax, and by name (reduced_every = 50) in presum.toml or in the table "
        "[tool.presum] of pyproject.toml, in the folder where the program starts. A flag overrides "
        "the environment, and the environment overrides a file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--run-folder",
        "--run",
        dest="run",
        metavar="RUN",
        help="folder to record into (default: runs/<script>-<time>); use the long form under "
        "torchrun, which reads --run as its own option",
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
    add(
        "--reduced-every",
        type=_positive,
        metavar="N",
        help="read the reduced gradient (default: 25)",
    )
    add("--verify-every", type=_positive, metavar="N", help="recompute a micro-batch every N steps")
    add("--sketch", metavar="K", type=_whole, help="size of a gradient's sketch; 0 for none")
    add("--groups", action="append", metavar="REGEX", help="parameter groups for per-group norms")
    add("--local-buffers", action="append", metavar="REGEX", help="buffers that may differ")
    add(
        "--fingerprints",
        type=_families,
        metavar="LIST",
        help="what to compare besides gradients and losses: all, none, or a list such as data,rng",
    )


def _add_sums(add: Callable[..., object]) -> None:
    add("--reduction", metavar="exact", help="sum gradients exactly, hence reproducibly")
    add("--microbatch-mean", action="store_true", help="with --reduction: mean of micro-batches")
    add("--audit", type=_positive, metavar="N", help="audit a bucket every N steps (DDP, FSDP2)")
    add("--audit-elements", type=_positive, metavar="K", help="per bucket (default: 65536)")


def _add_telling(add: Callable[..., object]) -> None:
    add(
        "--preflight",
        type=_positive,
        metavar="N",
        help="end with a verdict after N steps, or when the program ends, if that is earlier",
    )
    add("--require", choices=("facts", "statistics"), help="statistics: exit 2 if too few steps")
    add(
        "--stall-seconds",
        type=_seconds,
        metavar="S",
        help="report where all ranks are when one has been idle this long (default: 60)",
    )
    add(
        "--on-stall",
        choices=("report", "raise", "exit"),
        help="what to do besides when the job stalls (default: report)",
    )
    add(
        "--allow",
        action="append",
        type=_allowed,
        metavar="CHECK=REASON",
        help="findings of this check are intended: show them as information, with the reason",
    )
    add(
        "--log-to",
        type=_listed,
        metavar="LIST",
        help="also log to these trackers, while it trains: tensorboard, wandb, mlflow, trackio, "
        "otlp",
    )
    add(
        "--webhook",
        metavar="WHERE",
        help="post findings there: an environment variable, or a file, that holds an https address",
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
        raise argparse.ArgumentTypeError(f"{text} is not an integer") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None
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


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _families(text: str) -> list[str]:
    return {"all": [*FAMILIES], "none": []}.get(text, _listed(text))


def _options(found: argparse.Namespace) -> dict[str, Any]:
    """The options by name. Flags and environment override a file."""
    flags = {name: value for name, value in vars(found).items() if name in NAMES}
    if "allow" in flags:
        flags["allow"] = dict(flags["allow"])
    try:
        return from_file(Path.cwd()) | flags
    except UserError as error:
        _refuse(str(error))


class _CommandLine(NamedTuple):
    """The words before a program, and the program with its arguments."""

    own: list[str]
    others: list[str]  # options that are not presum's, such as those that a launcher inserts
    program: list[str]


def _divided(words: Sequence[str], parser: argparse.ArgumentParser) -> _CommandLine:
    """Split the words. The program starts at the first word that is neither an option nor an
    option's value, or after ``--``. argparse would drop a ``--`` that belongs to the program."""
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
    """Split the words after ``presum run``. Returns presum's options in the form that ranks get,
    and the launcher's command. Raises SystemExit for invalid options and for --help."""
    parser = _parser(program=False)
    parser.prog = "presum run"
    parser.usage = "presum run [options] [--] LAUNCHER [its options] PROGRAM [arguments]"
    line = _divided(words, parser)
    parser.parse_args([*line.own, *line.others])
    return [re.sub("^--run(?==|$)", "--run-folder", word) for word in line.own], line.program


def start_from_environment() -> None:
    """Start presum when it is imported with PRESUM=1."""
    _start(_parser(program=False).parse_args(_words_of_environment()))


def _start(found: argparse.Namespace, words: Sequence[str] | None = None) -> bool:
    """Returns whether this is a preflight."""
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
        _refuse(f"PRESUM_OPTIONS: unknown option: {' '.join(others)}")
    return words


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program in this process, as ``__main__``. Exceptions of the program propagate.

    Options that presum does not have go to the program: launchers insert theirs
    (``--local_rank=1``) after the first word of the command.
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
    """For a program that ended successfully before its preflight was complete."""
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
    """Run a script as ``python path`` does."""
    if pkgutil.get_importer(path) is not None:  # a folder, or a zipapp archive
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
    """Run a module as ``python -m name`` does."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = str(Path.cwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _show_as_its_own(error: BaseException) -> None:
    """Print the traceback without presum's frames. Python then ends the process normally."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    sys.excepthook = lambda *_: None


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>")


if __name__ == "__main__":
    main()
