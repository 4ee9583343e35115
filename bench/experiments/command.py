# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the experiments' command lines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from experiments.launch import WorkerError
from presum.errors import UserError

WORKERS = 8  # default number of ranks
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """The parser of a program; its texts are shown unwrapped."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def whole_number(text: str) -> int:
    """Convert an argument. Raises ArgumentTypeError unless it is an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of at least 1")
    return int(text)


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
    """Exit with the code of ``main``; 2 after a UserError, which rank 0 prints."""
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"presum: {error}", file=sys.stderr)
        sys.exit(2)


def exit_code_of(run: Callable[[], int]) -> int:
    """The exit code of ``run``; 1 if a rank failed (the error is printed), 130 if interrupted."""
    try:
        return run()
    except WorkerError as failure:
        print(f"presum: {failure}\n{failure.trace}".rstrip(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("presum: interrupted", file=sys.stderr)
        return INTERRUPTED
