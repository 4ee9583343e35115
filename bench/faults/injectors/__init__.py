# SPDX-License-Identifier: Apache-2.0
"""One class a fault: a clean run with one method changed. By the place of what is broken.

What it does says catalog.ini, under the same name; a class says what that leaves open.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.training import Training


def injector(name: str) -> type[Training]:
    """The class of a name. Raises LookupError where there is none."""
    for module in iter_modules(__path__, f"{__name__}."):
        found = vars(import_module(module.name)).get(name)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise LookupError(name)
