# SPDX-License-Identifier: Apache-2.0
"""One class a fault: a clean run with one method changed. By the place of what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults.injectors import (
    accumulation,
    continued,
    gradients,
    hardware,
    randomness,
    reductions,
    samples,
    settings,
    slow,
    states,
)

if TYPE_CHECKING:
    from faults.training import Training

_MODULES = (
    accumulation,
    continued,
    hardware,
    samples,
    randomness,
    settings,
    reductions,
    states,
    gradients,
    slow,
)


def injector(name: str) -> type[Training]:
    """The class of a name. Raises LookupError where there is none."""
    for module in _MODULES:
        if name in vars(module):
            return vars(module)[name]  # type: ignore[no-any-return]
    raise LookupError(name)
