# SPDX-License-Identifier: Apache-2.0
"""The console script: verbs that need Python run here, the others in the C++ library."""

from __future__ import annotations

import sys

from presum.errors import UserError


def main() -> int:
    """Run ``presum ARGS...``; returns the exit code (0 fine, 1 findings, 2 no verdict, 3 bug)."""
    args = sys.argv[1:]
    try:
        return _dispatch(args)
    except UserError as error:
        print(f"presum: {error}", file=sys.stderr)
        return 2


def _dispatch(args: list[str]) -> int:
    if args[:1] == ["s1"]:
        from presum.experiments.s1.command import main as s1

        return s1(args[1:])
    if args[:1] == ["faults"] and "--simulate" not in args:
        from presum.experiments.faults.command import main as faults

        return faults(args[1:])
    if args[:1] == ["run"]:
        raise UserError(
            "run a program with: torchrun --nproc-per-node N -m presum.run [options] train.py"
        )
    if args[:1] == ["doctor"]:
        from presum.doctor import main as doctor

        return doctor(args[1:])
    from presum._core import cli_main

    return int(cli_main(args))


if __name__ == "__main__":
    sys.exit(main())
