# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the experiments share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from experiments.launch import WorkerError

WORKERS = 8  # where the user says nothing
INTERRUPTED = 130  # as shells count: 128 and SIGINT


def make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """The parser of a program; its texts are shown as they are."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def whole_number(text: str) -> int:
    """An argument's value. Raises ArgumentTypeError for what is not a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)


def exit_code_of(run: Callable[[], int]) -> int:
    """What ``run`` returns; 1 where a worker failed, which is said, and 130 where it was
    interrupted."""
    try:
        return run()
    except WorkerError as failure:
        print(f"presum: {failure}\n{failure.trace}".rstrip(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("presum: interrupted", file=sys.stderr)
        return INTERRUPTED
