# SPDX-License-Identifier: Apache-2.0
"""The ``presum`` command. Verbs that need Python run here, the others in the C++ library."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from presum.errors import UserError, missing


def main() -> int:
    """Run ``presum ARGS...``. Returns the exit code: 0 success, 1 findings, 2 no verdict, 3 a bug
    in presum."""
    args = sys.argv[1:]
    try:
        return _dispatch(args)
    except UserError as error:
        print(f"presum: {error}", file=sys.stderr)
        return 2


def _dispatch(args: list[str]) -> int:
    if args[:1] == ["run"]:
        return _run(args[1:])
    if args[:1] == ["doctor"]:
        from presum.doctor import main as doctor

        return doctor(args[1:])
    if args[:1] == ["serve"]:
        from presum.serve.command import main as serve

        return serve(args[1:])
    from presum._core import cli_main

    return int(cli_main([os.fsencode(word) for word in args]))


def _run(words: list[str]) -> NoReturn:
    from presum.run import launcher_command

    options, command = launcher_command(words)
    from presum.frameworks.launchers import run

    try:
        run(command, options)
    except ModuleNotFoundError as error:
        raise UserError(f"run: {missing('this launcher', error)}") from None


if __name__ == "__main__":
    sys.exit(main())
