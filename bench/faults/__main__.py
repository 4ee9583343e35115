# SPDX-License-Identifier: Apache-2.0
"""python -m faults."""

from experiments.command import run_program
from faults.command import main

if __name__ == "__main__":
    run_program(main)
