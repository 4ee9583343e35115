# SPDX-License-Identifier: Apache-2.0
"""Practices that look like mistakes and are right, and beside each the nearest mistake
(docs/quiet.md)."""

from __future__ import annotations

from right import data, gradients, inputs, optimization, precision, samplers
from right.run import Program

MODULES = (data, gradients, inputs, samplers, optimization, precision)
RIGHT = {program.name: program for module in MODULES for program in module.PROGRAMS}
FAULTS = {program.name: program for module in MODULES for program in module.FAULTS}


def one_of_each(programs: dict[str, Program]) -> list[str]:
    """The first of each kind."""
    kinds: dict[str, str] = {}
    for name, program in programs.items():
        kinds.setdefault(program.kind, name)
    return [*kinds.values()]
