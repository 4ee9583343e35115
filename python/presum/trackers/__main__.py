# SPDX-License-Identifier: Apache-2.0
"""The process that logs to trackers: ``presum.trackers.process`` starts it.

The first line of standard input says what to do, its end that the run has ended. Lines on standard
output are messages for the program's terminal; what the trackers' libraries print goes nowhere.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from presum.trackers.following import NOT_DONE, Place, follow
from presum.trackers.kinds import ALL

END_SECONDS = 600.0  # the training no longer waits then


def main() -> None:
    task = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)

    def complain(line: str) -> None:
        print(line, file=out, flush=True)

    place = Place(Path(task["run"]), task["after"], task["segment"])
    trackers = {name: (ALL[name](), found) for name, found in task["trackers"].items()}
    if follow(trackers, place, complain, sys.stdin.read, END_SECONDS):
        os._exit(NOT_DONE)


if __name__ == "__main__":
    main()
