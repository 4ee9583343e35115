# SPDX-License-Identifier: Apache-2.0
"""Under torchrun every process is a rank; otherwise this process starts them."""

from experiments.command import run_program
from experiments.s1.command import main

run_program(main)
